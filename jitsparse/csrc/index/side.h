// The blocks of a pattern as panels along one of its sides see them.
#pragma once

#include <algorithm>
#include <vector>

#include "index/args.h"

namespace jitsparse::index {

struct Side {
  int64 majors, minors;   // block rows and block columns, or the other way round
  const int32* begin;     // (majors + 1,): where the blocks of each major index begin
  const int32* minor;     // (nnz,): increasing within a major index
  const int32* position;  // (nnz,): of each block, its place in `values`

  int64 blocks() const { return begin[majors]; }
};

// Sorts a pattern by columns: where the blocks of each column begin (minors + 1 entries), and in that order the row of each block and
// its position.
inline void by_columns(const Side& rows, int32* begin, int32* row, int32* position) {
  std::fill_n(begin, rows.minors + 1, 0);
  for (int64 z = 0; z < rows.blocks(); ++z) ++begin[rows.minor[z] + 1];
  for (int64 i = 0; i < rows.minors; ++i) begin[i + 1] += begin[i];
  std::vector<int32> next(begin, begin + rows.minors);
  for (int64 r = 0; r < rows.majors; ++r) {
    for (int64 z = rows.begin[r]; z < rows.begin[r + 1]; ++z) {
      const int32 place = next[rows.minor[z]]++;
      row[place] = int32(r);
      position[place] = rows.position[z];
    }
  }
}

// The same blocks, each cut into pieces across the side: piece i of the block at position p is at pieces * p + i.
class Pieces {
 public:
  Pieces(const Side& whole, int64 pieces) : majors_(whole.majors), minors_(whole.minors * pieces) {
    begin_.reserve(whole.majors + 1);
    minor_.reserve(whole.blocks() * pieces);
    position_.reserve(whole.blocks() * pieces);
    for (int64 i = 0; i <= whole.majors; ++i) begin_.push_back(int32(whole.begin[i] * pieces));
    for (int64 z = 0; z < whole.blocks(); ++z) {
      for (int64 piece = 0; piece < pieces; ++piece) {
        minor_.push_back(int32(whole.minor[z] * pieces + piece));
        position_.push_back(int32(whole.position[z] * pieces + piece));
      }
    }
  }

  Side side() const { return {majors_, minors_, begin_.data(), minor_.data(), position_.data()}; }

 private:
  int64 majors_, minors_;
  std::vector<int32> begin_, minor_, position_;
};

}  // namespace jitsparse::index
