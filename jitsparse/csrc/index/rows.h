// Which block rows of 64 share a panel: pair_rows and triple_rows of jitsparse/pairs.py.
#pragma once

#include "index/matching.h"
#include "index/panels.h"

namespace jitsparse::index {

// At most `size` consecutive rows, which are matched with one another.
class Window {
 public:
  Window(const Side& side, int64 begin, int64 size)
      : side_(side), begin_(begin), rows_(std::min(side.majors - begin, size)), size_(size), stored_(rows_, side.minors) {
    for (int64 row = 0; row < rows_; ++row) {
      for (int64 z = side.begin[begin + row]; z < side.begin[begin + row + 1]; ++z) stored_.insert(row, side.minor[z]);
    }
  }

  int64 rows() const { return rows_; }
  const ColumnSets& stored() const { return stored_; }
  int32 row(int64 number) const { return int32(number < rows_ ? begin_ + number : side_.majors); }  // of the pattern

  Table shared() const {
    Table table(rows_, 0);
    for (int64 i = 0; i < rows_; ++i) {
      for (int64 j = 0; j <= i; ++j) table.set(i, j, stored_.shared(i, j));
    }
    return table;
  }

  // Pairs of larger weight are preferred.
  Table weights(const Table& shared) const {
    Table table(rows_, kNoPair);
    for (int64 i = 0; i < rows_; ++i) {
      for (int64 j = 0; j < i; ++j) {
        const int64 more = above_chance(shared.at(i, j), shared.at(i, i), shared.at(j, j));
        table.set(i, j, more * size_ * size_ + in_no_order(size_, i, j));
      }
    }
    return table;
  }

  // How much more two sets of columns share than sets of these sizes do by chance, times the blocks of the grid.
  int64 above_chance(int64 shared, int64 some, int64 others) const {
    return shared * side_.majors * side_.minors - side_.blocks() * (some + others);
  }

 private:
  Side side_;
  int64 begin_, rows_, size_;
  ColumnSets stored_;
};

inline bool too_many_to_compare(const Side& side, int64 window) {
  return div_up(side.majors, window) * window * window * side.minors > kMaxRowComparisons;
}

inline Rows pair_rows(const Side& side) {
  if (side.majors <= 2 || too_many_to_compare(side, kPairedAmong)) return in_order(side.majors, 2);
  Rows result{2, {}};
  for (int64 begin = 0; begin < side.majors; begin += kPairedAmong) {
    const Window window(side, begin, kPairedAmong);
    const int64 rows = window.rows();
    const Table shared = window.shared();
    const std::vector<int32> partner = match(window.weights(shared), kPairingRounds);
    const auto together = [&](int64 i, int64 other) { return other < rows ? shared.at(i, other) : 0; };
    int64 by_choice = 0, side_by_side = 0;
    for (int64 i = 0; i < rows; ++i) by_choice += together(i, partner[i]), side_by_side += together(i, i ^ 1);
    for (int64 i = 0; i < rows; ++i) {
      const int64 other = by_choice > side_by_side ? partner[i] : i ^ 1;
      if (i < other) result.rows.insert(result.rows.end(), {window.row(i), window.row(other)});
    }
  }
  return result;
}

// The panels of a window: each keeps one of the pairs that share most, and takes a row from the other pairs.
class Triples {
 public:
  explicit Triples(const Window& window)
      : window_(window), panels_(div_up(window.rows(), 3)), others_(std::max<int64>(window.rows() - 2 * panels_, 0)) {
    const Table weights = window.weights(window.shared());
    const std::vector<int32> partner = match(weights, kPairingRounds);
    for (int64 i = 0; i < window.rows(); ++i) order_.push_back(int32(i));
    const auto of_pair = [&](int32 i) { return partner[i] < window.rows() ? weights.at(i, partner[i]) : kNoPair; };
    std::stable_sort(order_.begin(), order_.end(), [&](int32 a, int32 b) { return of_pair(a) > of_pair(b); });
  }

  void append_to(std::vector<int32>& rows) const {
    const std::vector<int32> third = thirds();
    for (int64 panel = 0; panel < panels_; ++panel) {
      const int64 other = third[panel] < 0 ? window_.rows() : number(2 * panels_ + third[panel]);
      rows.insert(rows.end(), {window_.row(number(2 * panel)), window_.row(number(2 * panel + 1)), window_.row(other)});
    }
  }

 private:
  static constexpr int64 kMost = kTripledAmong / 3;  // panels

  // The row of the window at a place in the order; no row of it past the last.
  int64 number(int64 place) const { return place < window_.rows() ? order_[place] : window_.rows(); }

  // Which of the other rows each panel takes; negative if none is left for it.
  std::vector<int32> thirds() const {
    std::vector<int32> partner = match_some(weights(), kPairingRounds);
    int64 next = 0;  // of the rows left after the rounds, which are taken as they come
    for (int64 panel = 0; panel < panels_; ++panel) {
      if (partner[panel] >= 0) {
        partner[panel] -= int32(kMost);
        continue;
      }
      while (next < others_ && partner[kMost + next] >= 0) ++next;
      if (next < others_) partner[panel] = int32(next++);
    }
    return partner;
  }

  // The weights of pairs, the first kMost rows of a table, with other rows, the last kMost.
  Table weights() const {
    const ColumnSets& stored = window_.stored();
    Table table(2 * kMost, kNoPair);
    std::vector<uint64> pair(stored.words());
    for (int64 panel = 0; panel < panels_ && others_ > 0; ++panel) {
      const uint64 *a = stored[number(2 * panel)], *b = stored[number(2 * panel + 1)];
      for (int64 w = 0; w < stored.words(); ++w) pair[w] = a[w] | b[w];
      const int64 columns = stored.shared(pair.data(), pair.data());
      for (int64 i = 0; i < others_; ++i) {
        const int64 other = number(2 * panels_ + i);
        const int64 more = window_.above_chance(stored.shared(pair.data(), stored[other]), columns, stored.shared(other, other));
        table.set(panel, kMost + i, more * (2 * kMost) * (2 * kMost) + in_no_order(2 * kMost, panel, kMost + i));
      }
    }
    return table;
  }

  const Window& window_;
  int64 panels_, others_;
  std::vector<int32> order_;
};

inline Rows triple_rows(const Side& side) {
  if (side.majors <= 3 || too_many_to_compare(side, kTripledAmong)) return in_order(side.majors, 3);
  Rows result{3, {}};
  for (int64 begin = 0; begin < side.majors; begin += kTripledAmong) {
    Triples(Window(side, begin, kTripledAmong)).append_to(result.rows);
  }
  return result;
}

}  // namespace jitsparse::index
