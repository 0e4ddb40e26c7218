// Panels and their steps, as jitsparse/layout.py describes them.
#pragma once

#include <algorithm>
#include <utility>

#include "index/side.h"

namespace jitsparse::index {

struct Step {
  int32 slab;
  int32 mask;      // bit g * across + c: row g of the panel stores the c-th block column of the slab
  int32 first;     // where its blocks begin in Panels::blocks
  int32 position;  // of the first of them
};
static_assert(sizeof(Step) == 16, "a step is four words of the index");

struct Panels {
  std::vector<Step> steps;
  std::vector<int32> pointers = {0};  // where the steps of each panel begin, and end
  std::vector<int32> blocks;          // positions, in the order of the steps

  int64 count() const { return int64(pointers.size()) - 1; }
  int64 length(int64 panel) const { return pointers[panel + 1] - pointers[panel]; }

  // Fills the index where it has room for more steps than there are.
  Step filler() const { return {0, 0, int32(blocks.size()), blocks.empty() ? 0 : blocks.back()}; }
};

// The block rows of panels, `down` per panel; entries not below `majors` are no rows.
struct Rows {
  int64 down;
  std::vector<int32> rows;

  // visit(place in the panel, row)
  template <class Visit> void each(int64 panel, int64 majors, Visit visit) const {
    for (int64 g = 0; g < down; ++g) {
      if (const int64 row = rows[panel * down + g]; row < majors) visit(g, row);
    }
  }
};

// Consecutive rows.
inline Rows in_order(int64 majors, int64 down) {
  Rows result{down, std::vector<int32>(down * div_up(majors, down))};
  for (size_t i = 0; i < result.rows.size(); ++i) result.rows[i] = int32(std::min(int64(i), majors));
  return result;
}

// Builds the steps of panels of these rows, each of `across` block columns, a power of two.
class PanelBuilder {
 public:
  PanelBuilder(const Side& side, const Rows& rows, int64 across)
      : side_(side), rows_(rows), shift_(__builtin_ctzll(across)), slabs_(div_up(side.minors, across)) {}

  Panels run() {
    result_.blocks.reserve(side_.blocks());
    result_.steps.reserve(side_.blocks());
    for (int64 panel = 0; panel < div_up(side_.majors, rows_.down); ++panel) {
      int64 blocks = 0;
      rows_.each(panel, side_.majors, [&](int64, int64 row) { blocks += side_.begin[row + 1] - side_.begin[row]; });
      // Counting visits every slab, sorting visits every block several times.
      if (blocks * 8 < slabs_) by_sorting(panel); else by_counting(panel);
      result_.pointers.push_back(int32(result_.steps.size()));
    }
    return std::move(result_);
  }

 private:
  struct Entry {
    int32 slab, bit, position;
    bool operator<(const Entry& other) const { return slab != other.slab ? slab < other.slab : bit < other.bit; }
  };

  // visit(slab, bit, position), row after row
  template <class Visit> void each_block(int64 panel, Visit visit) const {
    const int32 in_slab = (1 << shift_) - 1;
    rows_.each(panel, side_.majors, [&](int64 g, int64 row) {
      for (int64 z = side_.begin[row]; z < side_.begin[row + 1]; ++z) {
        visit(side_.minor[z] >> shift_, int32(g << shift_) + (side_.minor[z] & in_slab), side_.position[z]);
      }
    });
  }

  void by_counting(int64 panel) {
    count_.assign(slabs_, 0);
    each_block(panel, [&](int32 slab, int32, int32) { ++count_[slab]; });
    step_.resize(slabs_);
    int32 first = int32(result_.blocks.size());
    for (int64 slab = 0; slab < slabs_; ++slab) {
      if (!count_[slab]) continue;
      step_[slab] = int32(result_.steps.size());
      result_.steps.push_back({int32(slab), 0, first, 0});
      first += std::exchange(count_[slab], first);
    }
    result_.blocks.resize(first);
    // Rows come in order, and columns in order within them, so the blocks of a slab come in ascending order of bits.
    each_block(panel, [&](int32 slab, int32 bit, int32 position) {
      Step& step = result_.steps[step_[slab]];
      if (!step.mask) step.position = position;
      step.mask |= int32(1u << bit);
      result_.blocks[count_[slab]++] = position;
    });
  }

  void by_sorting(int64 panel) {
    entries_.clear();
    each_block(panel, [&](int32 slab, int32 bit, int32 position) { entries_.push_back({slab, bit, position}); });
    std::sort(entries_.begin(), entries_.end());
    int32 last = -1;
    for (const Entry& each : entries_) {
      if (each.slab != last) result_.steps.push_back({each.slab, 0, int32(result_.blocks.size()), each.position});
      result_.steps.back().mask |= int32(1u << each.bit);
      result_.blocks.push_back(each.position);
      last = each.slab;
    }
  }

  Side side_;
  const Rows& rows_;
  int shift_;
  int64 slabs_;
  Panels result_;
  std::vector<int32> count_, step_;
  std::vector<Entry> entries_;
};

inline Panels panels_of(const Side& side, const Rows& rows, int64 across) { return PanelBuilder(side, rows, across).run(); }

// The step of its panel that each block belongs to, counted from 0, in the order of the side.
inline std::vector<int32> ranks_in_panels(const Side& side, const Rows& rows, const Panels& panels) {
  std::vector<int32> ranks(side.blocks()), rank_of(side.minors);
  for (int64 panel = 0; panel < panels.count(); ++panel) {
    const int32 begin = panels.pointers[panel], end = panels.pointers[panel + 1];
    for (int32 step = begin; step < end; ++step) rank_of[panels.steps[step].slab] = step - begin;
    rows.each(panel, side.majors, [&](int64, int64 row) {
      for (int64 z = side.begin[row]; z < side.begin[row + 1]; ++z) ranks[z] = rank_of[side.minor[z]];
    });
  }
  return ranks;
}

// Panels by number of steps, or rows by number of blocks, the most first.
inline std::vector<int32> longest_first(const int32* pointers, int64 count) {
  std::vector<int32> order(count);
  for (int64 i = 0; i < count; ++i) order[i] = int32(i);
  const auto length = [&](int32 i) { return pointers[i + 1] - pointers[i]; };
  std::stable_sort(order.begin(), order.end(), [&](int32 a, int32 b) { return length(a) > length(b); });
  return order;
}

}  // namespace jitsparse::index
