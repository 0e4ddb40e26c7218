// Matches rows that share most of their columns; jitsparse/pairs.py explains how and why.
#pragma once

#include <vector>

#include "abi.h"

namespace jitsparse::index {

constexpr int64 kNoPair = -(int64(1) << 60);  // less than any weight

// Sets of columns, one bit per column.
class ColumnSets {
 public:
  ColumnSets(int64 sets, int64 columns) : words_(div_up(columns, 64)), bits_(sets * words_) {}

  int64 words() const { return words_; }
  uint64* operator[](int64 set) { return bits_.data() + set * words_; }
  const uint64* operator[](int64 set) const { return bits_.data() + set * words_; }
  void insert(int64 set, int64 column) { (*this)[set][column / 64] |= uint64(1) << column % 64; }

  int64 shared(int64 a, int64 b) const { return shared((*this)[a], (*this)[b]); }
  int64 shared(const uint64* a, const uint64* b) const {
    int64 sum = 0;
    for (int64 w = 0; w < words_; ++w) sum += __builtin_popcountll(a[w] & b[w]);
    return sum;
  }

 private:
  int64 words_;
  std::vector<uint64> bits_;
};

// A number for each pair of rows.
class Table {
 public:
  Table(int64 rows, int64 value) : rows_(rows), cells_(rows * rows, value) {}
  int64 rows() const { return rows_; }
  int64 at(int64 a, int64 b) const { return cells_[a * rows_ + b]; }
  void set(int64 a, int64 b, int64 value) { cells_[a * rows_ + b] = cells_[b * rows_ + a] = value; }

 private:
  int64 rows_;
  std::vector<int64> cells_;
};

// Breaks ties between pairs of equal weight in a window of `rows` rows.
inline int64 in_no_order(int64 rows, int64 a, int64 b) {
  const int64 number = (a < b ? a : b) * rows + (a < b ? b : a);
  return number * 2654435761 % (rows * rows);
}

// The partner of each row; -1 for rows left after the rounds. A weight of kNoPair never matches.
inline std::vector<int32> match_some(const Table& weights, int rounds) {
  const int64 rows = weights.rows();
  std::vector<int32> partner(rows, -1), best(rows);
  for (int round = 0; round < rounds; ++round) {
    for (int64 i = 0; i < rows; ++i) {
      int64 most = kNoPair;
      best[i] = -1;
      if (partner[i] >= 0) continue;
      for (int64 j = 0; j < rows; ++j) {
        if (partner[j] < 0 && weights.at(i, j) > most) most = weights.at(i, j), best[i] = int32(j);
      }
    }
    for (int64 i = 0; i < rows; ++i) {
      if (best[i] >= 0 && best[best[i]] == i) partner[i] = best[i];
    }
  }
  return partner;
}

// As match_some, but pairs the rows left as they come; the last may have `rows`, which is no row.
inline std::vector<int32> match(const Table& weights, int rounds) {
  std::vector<int32> partner = match_some(weights, rounds);
  int64 waiting = -1;
  for (int64 i = 0; i < weights.rows(); ++i) {
    if (partner[i] >= 0) continue;
    if (waiting < 0) {
      waiting = i;
    } else {
      partner[i] = int32(waiting);
      partner[waiting] = int32(i);
      waiting = -1;
    }
  }
  if (waiting >= 0) partner[waiting] = int32(weights.rows());
  return partner;
}

}  // namespace jitsparse::index
