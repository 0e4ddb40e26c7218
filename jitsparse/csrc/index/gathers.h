// The tiles of an sdd on Hopper, as jitsparse/gathers.py describes them.
#pragma once

#include "index/balance.h"
#include "index/sharing.h"

namespace jitsparse::index {

// The steps of a panel in one pairing, side by side. A panel's first run is of the steps in no pairing.
struct Run {
  int32 first, steps;
  int32 parts;  // tiles among which they are divided evenly; 0 if the partner's run has them
};

struct Tile {
  int32 words[8];  // (panel, first step, end, 0) of each warpgroup

  int32 panel() const { return words[0]; }
  int32 begin() const { return words[1]; }
  int32 end() const { return words[6]; }
};

// A list of tiles. The index stores a head, then as many tiles as there is room for.
struct TileList {
  std::vector<Tile> tiles;
  std::vector<int32> width;  // columns of each
  std::vector<bool> two;     // whether it has two panels
  Tile filler;

  void add(const Tile& tile, int64 columns, bool two_panels) {
    tiles.push_back(tile);
    width.push_back(int32(columns));
    two.push_back(two_panels);
  }
  int64 widest(bool with_two) const {
    int64 most = 0;
    for (size_t i = 0; i < tiles.size(); ++i) most = two[i] == with_two ? std::max<int64>(most, width[i]) : most;
    return most;
  }
};

// What the index holds about an sdd's tiles along one side.
struct Gathered {
  std::vector<Step> steps;  // in the order that the tiles refer to
  TileList tiles, wide;     // as wide as suits the pattern; as wide as can be, of one panel each
  int64 wgmma_step;         // the columns of a wgmma of `tiles` are a multiple of this
};

// Args: panels of single columns; the shape of a tile.
class Gatherer {
 public:
  Gatherer(const Panels& panels, const GatherArgs& gather) : panels_(panels), gather_(gather), most_of_two_(gather.most / 2) {
    ways_.push_back(nothing_shared(panels));
    // If all tiles of one panel run at once even at half the greatest width, no tile of two panels is as fast.
    const bool many = panels.count() + blocks() / most_of_two_ > kSms;
    if (gather.may_share && many && may_pair(panels, gather)) ways_.push_back(share(panels, gather));
  }

  Gathered run() {
    plan();
    Gathered gathered;
    gathered.steps = sorted_steps();
    gathered.tiles = listed(runs_, ways_[way_].partner, kRuns);
    gathered.wgmma_step = wgmma_step(gathered.tiles);
    put_in_order(gathered.tiles, gathered.steps);
    gathered.wide = listed(runs_as_wide_as_can_be(), alone(), 1);
    return gathered;
  }

 private:
  int64 blocks() const { return int64(panels_.blocks.size()); }

  // How many tiles there can be if all have at least `width` columns, except for one per panel.
  int64 capacity(int64 width) const { return panels_.count() + std::min(blocks(), panels_.count() * gather_.minors) / width; }

  // The cost of a tile of `rows` rows and `width` columns.
  int64 cost(int64 rows, int64 width, int64 fixed) const { return std::max(rows + width * gather_.block, kMinLoaded) + fixed; }

  // The runs of each panel. Those of pairings are divided into tiles as wide as possible, by the panel that comes first.
  std::vector<Run> runs_of(const Shares& shares) const {
    std::vector<Run> runs(panels_.count() * kRuns, Run{0, 0, 0});
    int32 first = 0;
    for (int64 panel = 0; panel < panels_.count(); ++panel) {
      Run* of_panel = &runs[panel * kRuns];
      for (int32 step = panels_.pointers[panel]; step < panels_.pointers[panel + 1]; ++step) ++of_panel[shares.pairing[step]].steps;
      for (int64 pairing = 0; pairing < kRuns; ++pairing) {
        Run& run = of_panel[pairing];
        run.first = first;
        first += run.steps;
        if (shares.partner[panel * kRuns + pairing] > panel) run.parts = int32(div_up(run.steps, most_of_two_));
      }
    }
    return runs;
  }

  // How many tiles of one panel a run takes if their mean width is `halves` / 2 columns.
  static int64 parts_alone(const Run& run, int64 halves) { return div_up(2 * run.steps, halves); }

  // Finds the runs with which the busiest CTA finishes first. Tiles of one panel have the width that suits the pattern.
  void plan() {
    // Many tiles are balanced whatever their width.
    const int64 fewest = capacity(gather_.fewest) <= kMaxBalanced ? gather_.fewest : gather_.most;
    int64 least = 0, best = 0;
    for (size_t way = 0; way < ways_.size(); ++way) {
      const std::vector<Run> runs = runs_of(ways_[way]);
      Widths of_two(most_of_two_);
      for (const Run& run : runs) of_two.deal_out(run.steps, run.parts);
      for (int64 halves = 2 * fewest; halves <= 2 * gather_.most; ++halves) {
        Widths of_one(gather_.most);
        for (int64 panel = 0; panel < panels_.count(); ++panel) {
          of_one.deal_out(runs[panel * kRuns].steps, parts_alone(runs[panel * kRuns], halves));
        }
        std::vector<Load> loads;
        of_two.append_to(loads, [&](int64 width) { return cost(2 * gather_.height, width, kFixedOfTwo); });
        of_one.append_to(loads, [&](int64 width) { return cost(gather_.height, width, kFixed); });
        // As in gathers.py: places without a tile cost nothing.
        loads.push_back({0, 2 * capacity(gather_.fewest) - of_two.tiles() - of_one.tiles()});
        const int64 done = busiest(std::move(loads));
        if (best && done >= least) continue;
        least = done, best = halves, way_ = way;
      }
    }
    runs_ = runs_of(ways_[way_]);
    for (int64 panel = 0; panel < panels_.count(); ++panel) {
      Run& run = runs_[panel * kRuns];
      run.parts = int32(parts_alone(run, best));
    }
  }

  std::vector<Step> sorted_steps() const {
    std::vector<Step> sorted(panels_.steps.size());
    std::vector<int32> next;
    for (const Run& run : runs_) next.push_back(run.first);
    for (int64 panel = 0; panel < panels_.count(); ++panel) {
      for (int32 step = panels_.pointers[panel]; step < panels_.pointers[panel + 1]; ++step) {
        sorted[next[panel * kRuns + ways_[way_].pairing[step]]++] = panels_.steps[step];
      }
    }
    return sorted;
  }

  TileList listed(const std::vector<Run>& runs, const std::vector<int32>& partner, int64 runs_of_panel) const {
    TileList list;
    for (int64 number = 0; number < int64(runs.size()); ++number) {
      const Run& run = runs[number];
      const int64 panel = number / runs_of_panel, other = partner[number];
      // The partner's steps of the same columns are as far from the first of their run.
      const int64 ahead = runs[other * runs_of_panel + number % runs_of_panel].first - run.first;
      for (int64 part = 0; part < run.parts; ++part) {
        const int64 begin = int64(run.steps) * part / run.parts, end = int64(run.steps) * (part + 1) / run.parts;
        list.add(tile(panel, other, run.first + begin, run.first + end, ahead), end - begin, other != panel);
      }
      list.filler = tile(panel, other, run.first, run.first, ahead);  // as in gathers.py: nothing of the last run
    }
    return list;
  }

  Tile tile(int64 panel, int64 other, int64 begin, int64 end, int64 ahead) const {
    int64 first_end = end, second_begin = begin + ahead;
    if (gather_.height <= 64 && other == panel) first_end = second_begin = (begin + end + 1) / 2;
    return {{int32(panel), int32(begin), int32(first_end), 0, int32(other), int32(second_begin), int32(end + ahead), 0}};
  }

  int64 wgmma_step(const TileList& list) const {
    std::vector<Load> loaded, narrow, wide;
    for (size_t i = 0; i < list.tiles.size(); ++i) {
      loaded.push_back({gather_.height * (1 + list.two[i]) + list.width[i] * gather_.block, 1});
      narrow.push_back({multiplied(list.tiles[i], kNarrow), 1});
      wide.push_back({multiplied(list.tiles[i], kWide), 1});
    }
    const double most = double(busiest(wide));
    return most >= kBusy * double(busiest(loaded)) || most >= kSpared * double(busiest(narrow)) ? kNarrow : kWide;
  }

  // Columns of both warpgroups, each rounded up to a multiple of `step`.
  int64 multiplied(const Tile& tile, int64 step) const {
    const int32* words = tile.words;
    return div_up((words[2] - words[1]) * gather_.block, step) * step + div_up((words[6] - words[5]) * gather_.block, step) * step;
  }

  // Sorts tiles by place, but within a run of a few rounds by load, the largest first.
  void put_in_order(TileList& list, const std::vector<Step>& steps) const {
    const int64 count = int64(list.tiles.size()), group = panels_of_group(count);
    std::vector<int32> order(count);
    std::vector<int64> place(count), load(count);
    for (int64 i = 0; i < count; ++i) {
      const Tile& each = list.tiles[i];
      // The sum of its first and last column; those of its second half are no others.
      const int64 middle = int64(steps[each.begin()].slab) + steps[each.end() - 1].slab;
      order[i] = int32(i);
      place[i] = list.two[i] ? -1 : each.panel() / group * (2 * gather_.minors) + middle;
      load[i] = list.width[i] + list.two[i] * gather_.height / gather_.block;
    }
    std::stable_sort(order.begin(), order.end(), [&](int32 a, int32 b) { return place[a] < place[b]; });
    if (count > kSms) {
      // A remainder of less than half a run joins the last run: all should end with narrow tiles.
      const int64 tiles_of_run = kSortedRounds * kSms, runs = std::max<int64>((count + tiles_of_run / 2) / tiles_of_run, 1);
      for (int64 run = 0; run < runs; ++run) {
        const auto begin = order.begin() + run * tiles_of_run, end = run + 1 == runs ? order.end() : begin + tiles_of_run;
        std::stable_sort(begin, end, [&](int32 a, int32 b) { return load[a] > load[b]; });
      }
    }
    TileList ordered;
    for (int32 i : order) ordered.add(list.tiles[i], list.width[i], list.two[i]);
    ordered.filler = list.filler;
    list = std::move(ordered);
  }

  // How many panels have their tiles of the same columns side by side.
  int64 panels_of_group(int64 count) const {
    const int64 panels = panels_.count(), side_by_side = gather_.height > 64 ? std::max(kSms, kTilesOfAPanel * panels) : kSms;
    if (count <= side_by_side) return 1;
    return std::max<int64>((kRoundsOfAGroup * kSms * panels + count / 2) / count, 1);
  }

  // Split-K uses these tiles if they are few, and few tiles have no better order.
  std::vector<Run> runs_as_wide_as_can_be() const {
    std::vector<Run> runs;
    for (int64 panel = 0; panel < panels_.count(); ++panel) {
      const int64 steps = panels_.length(panel);
      runs.push_back({panels_.pointers[panel], int32(steps), int32(div_up(steps, gather_.most))});
    }
    return runs;
  }

  std::vector<int32> alone() const {
    std::vector<int32> partner;
    for (int64 panel = 0; panel < panels_.count(); ++panel) partner.push_back(int32(panel));
    return partner;
  }

  const Panels& panels_;
  const GatherArgs& gather_;
  int64 most_of_two_;
  std::vector<Shares> ways_;
  size_t way_ = 0;
  std::vector<Run> runs_;
};

}  // namespace jitsparse::index
