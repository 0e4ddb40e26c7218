// The packed index of a pattern, part by part: bit for bit what jitsparse/schedule.py computes with torch operations.
#pragma once

#include <cstring>
#include <numeric>

#include "index/gathers.h"
#include "index/pace.h"
#include "index/parallel.h"
#include "index/rows.h"

namespace jitsparse::index {

inline void put(int32* part, const std::vector<int32>& data) { std::copy(data.begin(), data.end(), part); }

// Writes as many steps as there are, then fillers up to `room`.
inline void put(int32* part, int64 room, const std::vector<Step>& steps, const Step& filler) {
  Step* out = reinterpret_cast<Step*>(part);
  const int64 count = std::min(int64(steps.size()), room);
  std::fill(std::copy_n(steps.begin(), count, out), out + room, filler);
}

inline void put(int32* part, int64 room, const TileList& list, int64 wgmma_step) {
  Tile* out = reinterpret_cast<Tile*>(part);
  *out++ = {{int32(list.tiles.size()), int32(list.widest(false)), int32(list.widest(true)), int32(wgmma_step), 0, 0, 0, 0}};
  std::fill(std::copy(list.tiles.begin(), list.tiles.end(), out), out + room, list.filler);
}

// Writes for each panel, in the order of the walk: the range of its steps, where its rows begin, and a copy of its first steps.
inline void put_panels(int32* part, const Walk& walk) {
  for (int32 panel : walk.order) {
    const int32 begin = walk.panels.pointers[panel], end = walk.panels.pointers[panel + 1];
    part[0] = begin;
    part[1] = end;
    std::copy_n(&walk.starts.rows[panel * walk.starts.down], walk.starts.down, part + 4);
    const auto first = walk.panels.steps.begin() + begin;
    std::copy(first, first + std::min(end - begin, kFirstSteps), reinterpret_cast<Step*>(part + 8));
    part += kPanelWords;
  }
}

// Builds the parts of one side, in independent tasks.
class SideBuilder {
 public:
  enum Task { kGathered, kSteps, kSlabs, kTall, kFacts, kTasks };  // the longest first

  SideBuilder(const Side& side, const SideArgs& args) : side_(side), args_(args) {}

  // Call first: chooses which rows share a panel of 128 rows, or of 192.
  void choose_rows(bool tall) {
    if (tall) {
      if (args_.tall.panels) tripled_ = triple_rows(side_);
    } else {
      rows_ = args_.paired ? pair_rows(side_) : in_order(side_.majors, args_.group);
    }
  }

  // Builds a task's parts, and writes all but those that keep_pace has to see first.
  void build(int64 task) {
    switch (task) {
      case kGathered: if (args_.gather.tiles) put_gathered(); break;
      case kSteps: build_steps(); break;
      case kSlabs: if (args_.slab.panels) slabs_ = walk(panels_of(side_, rows_, args_.slab.across), starts(), args_.slab.across); break;
      case kTall: if (args_.tall.panels) tall_ = walk(panels_of(side_, tripled_, args_.tall.across), tripled_, args_.tall.across); break;
      case kFacts: put_facts(); break;
    }
  }

  // Appends what is to be walked at one pace.
  void append_to(std::vector<Walk*>& walks) {
    if (args_.panels_sorted) walks.push_back(&steps_);
    if (args_.slab.panels) walks.push_back(&slabs_);
    if (args_.tall.panels) walks.push_back(&tall_);
  }

  void put_walks() const {
    put(args_.steps, side_.blocks(), steps_.panels.steps, steps_.panels.filler());
    if (args_.panels_sorted) put_panels(args_.panels_sorted, steps_);
    if (args_.slab.panels) put_slabs(args_.slab, slabs_);
    if (args_.tall.panels) put_slabs(args_.tall, tall_);
  }

 private:
  void build_steps() {
    put(args_.sorted, longest_first(side_.begin, side_.majors));
    steps_ = walk(panels_of(side_, rows_, 1), starts(), 1);
    put(args_.panel_ptr, steps_.panels.pointers);
    put(args_.panel_blocks, steps_.panels.blocks);
    if (args_.condensed.panels) put_condensed();
  }

  Walk walk(Panels panels, Rows starts, int64 across) const {
    std::vector<int32> order = longest_first(panels.pointers.data(), panels.count());
    return {std::move(panels), std::move(order), std::move(starts), side_.minors, across, args_.extent};
  }

  // Where each 64 rows of a panel of 128 begin, in units of 64.
  Rows starts() const { return args_.paired ? rows_ : in_order(2 * div_up(side_.majors, args_.group), 2); }

  // For panels of consecutive rows: how many steps they have if steps are slabs, how many if steps are block columns, and
  // how many of the latter the longest panel has.
  void put_facts() const {
    const std::vector<int32> slabs = steps_of_panels(args_.slab_columns), columns = steps_of_panels(1);
    args_.facts[0] = std::accumulate(slabs.begin(), slabs.end(), int64(0));
    args_.facts[1] = std::accumulate(columns.begin(), columns.end(), int64(0));
    args_.facts[2] = columns.empty() ? 0 : *std::max_element(columns.begin(), columns.end());
  }

  std::vector<int32> steps_of_panels(int64 across) const {
    const Rows rows = in_order(side_.majors, args_.group);
    std::vector<int32> steps(div_up(side_.majors, args_.group)), last_panel(div_up(side_.minors, across), -1);
    for (int64 panel = 0; panel < int64(steps.size()); ++panel) {
      rows.each(panel, side_.majors, [&](int64, int64 row) {
        for (int64 z = side_.begin[row]; z < side_.begin[row + 1]; ++z) {
          if (std::exchange(last_panel[side_.minor[z] / across], int32(panel)) != panel) ++steps[panel];
        }
      });
    }
    return steps;
  }

  static void put_slabs(const SlabArgs& args, const Walk& walk) {
    put_panels(args.panels, walk);
    put(args.steps, args.most, walk.panels.steps, walk.panels.filler());
    put(args.blocks, walk.panels.blocks);
  }

  // Panels whose steps are slabs of the next block columns that they store. They share no order, since no two panels share a slab.
  void put_condensed() const {
    const SlabArgs& args = args_.condensed;
    const Panels& panels = steps_.panels;
    const std::vector<int32> ranks = ranks_in_panels(side_, rows_, panels);
    const Side ranked{side_.majors, side_.minors, side_.begin, ranks.data(), side_.position};
    Walk condensed = walk(panels_of(ranked, rows_, args.across), starts(), args.across);
    std::fill_n(args_.condensed_columns, args.most * args.across, -1);
    for (int64 panel = 0; panel < panels.count(); ++panel) {
      int32* columns = args_.condensed_columns + condensed.panels.pointers[panel] * args.across;
      for (int32 step = panels.pointers[panel]; step < panels.pointers[panel + 1]; ++step) *columns++ = panels.steps[step].slab;
    }
    // In place of its slab, a step has its own number.
    condensed.panels.steps.resize(args.most, condensed.panels.filler());
    for (int64 i = 0; i < args.most; ++i) condensed.panels.steps[i].slab = int32(i);
    put_slabs(args, condensed);
  }

  void put_gathered() const {
    const GatherArgs& args = args_.gather;
    const Pieces pieces(side_, args.pieces);
    const Panels panels = panels_of(pieces.side(), in_order(side_.majors, args.down), 1);
    put(args.blocks, panels.blocks);
    if (panels.blocks.empty()) return;
    const Gathered gathered = Gatherer(panels, args).run();
    put(args.steps, args.steps_room, gathered.steps, panels.filler());
    put(args.tiles, args.tiles_room, gathered.tiles, gathered.wgmma_step);
    put(args.wide, args.wide_room, gathered.wide, kWide);
  }

  Side side_;
  const SideArgs& args_;
  Rows rows_, tripled_;
  Walk steps_, slabs_, tall_;
};

// Whether the indices are those of such a pattern. They determine where everything is written.
inline bool is_pattern(const IndexArgs& args) {
  if (args.crow[0] != 0 || args.crow[args.rows] != args.nnz) return false;
  for (int64 r = 0; r < args.rows; ++r) {
    if (args.crow[r] > args.crow[r + 1]) return false;
    for (int64 z = args.crow[r]; z < args.crow[r + 1]; ++z) {
      const int64 least = z > args.crow[r] ? int64(args.col[z - 1]) + 1 : 0;
      if (z >= args.nnz || args.col[z] < least || args.col[z] >= args.cols) return false;
    }
  }
  return true;
}

inline void write(const IndexArgs& args) {
  std::memset(args.index, 0, args.size * sizeof(int32));
  std::copy_n(args.crow, args.rows + 1, args.crow_indices);
  std::copy_n(args.col, args.nnz, args.col_indices);
  std::vector<int32> position(args.nnz);
  for (int64 r = 0; r < args.rows; ++r) {
    for (int64 z = args.crow[r]; z < args.crow[r + 1]; ++z) args.row_indices[z] = int32(r), position[z] = int32(z);
  }
  const Side rows{args.rows, args.cols, args.crow, args.col, position.data()};
  by_columns(rows, args.ccol_indices, args.row_indices_t, args.perm);
  const Side cols{args.cols, args.rows, args.ccol_indices, args.row_indices_t, args.perm};
  SideBuilder sides[2] = {{rows, args.by_row}, {cols, args.by_col}};
  in_parallel(4, args.threads, [&](int64 i) { sides[i % 2].choose_rows(i >= 2); });
  in_parallel(2 * SideBuilder::kTasks, args.threads, [&](int64 i) { sides[i % 2].build(i / 2); });
  std::vector<Walk*> walks;
  for (SideBuilder& side : sides) side.append_to(walks);
  keep_pace(walks, args.threads);
  in_parallel(2, args.threads, [&](int64 i) { sides[i].put_walks(); });
}

enum Status { kOk, kOutOfMemory, kNoPattern, kFailed };

inline const char* describe(int status) {
  switch (status) {
    case kOk: return "no error";
    case kOutOfMemory: return "out of memory";
    case kNoPattern: return "the indices are not those of a pattern: their memory was written to since it was made";
    default: return "internal error: an unexpected C++ exception";
  }
}

// No exception may pass through C.
inline int build(const IndexArgs& args) {
  if (!is_pattern(args)) return kNoPattern;
  try {
    write(args);
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (...) {
    return kFailed;
  }
  return kOk;
}

}  // namespace jitsparse::index
