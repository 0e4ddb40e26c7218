// Packing beside multiplying: lines of an operand are copied into panels one by one between multiply-adds.
//
// With few blocks per row, every packed line serves few multiply-adds. Packing them first takes a tenth of a product at density 0.1: the
// multipliers wait while lines come from the L3 cache. A burst of prefetches before that is no faster, since a core fetches only some 16
// lines at a time, and lines of panels on their way from L2 to L1 are among them. One line every few steps, prefetched some thousand
// steps before it is copied, costs almost nothing.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// A register tile leaves registers for that where there are 32. (With AVX2, which has 16, products take 0.98 to 1.08 times as long.)
constexpr bool kMayPackBeside = kVecBytes == 64;

// Lines of L elements to copy, one or several side by side in each of some rows, and as many others to prefetch. Distances are in elements.
template <class T, int L> struct LineCopies {
  const T *from, *fetch;
  int64 from_step;  // from a row to the next
  Acc<T>* to;
  int64 to_step;
  int64 to_across;  // between lines of a row; where they come from, they are neighbours

  JITSPARSE_INLINE void copy(int64 row, int across) const {
    __builtin_prefetch(fetch + row * from_step + across * L, 0, kIntoL2);
    store<L, Acc<T>>(to + row * to_step + across * to_across, load<L>(from + row * from_step + across * L));
  }
};

// Jobs of LineCopies, each of Source::rows() rows and kAcross lines. A job is a line of a piece of a part, in this order:
//   for each part of `order`, for each piece of piece_count, for each line of line_count
// Source::lines(part, piece, line) says what it copies, and Source::from(part, piece, line) where from.
template <class Source> class CopyQueue {
 public:
  CopyQueue(const Source& source, const int32* order, int64 parts)
      : source_(source), order_(order), jobs_(parts * source.piece_count * source.line_count) {}

  bool empty() const { return taken_ >= jobs_; }

  // The next job; once the queue is empty, the last again. The lines to prefetch are those of a later one.
  JITSPARSE_INLINE typename Source::Lines take() {
    while (fetched_ < taken_ + Source::kAhead && fetched_ + 1 < jobs_) {
      fetch_.advance(source_);
      ++fetched_;
    }
    auto lines = source_.lines(order_[copy_.part], copy_.piece, copy_.line);
    lines.fetch = source_.from(order_[fetch_.part], fetch_.piece, fetch_.line);
    if (++taken_ < jobs_) copy_.advance(source_);
    return lines;
  }

  // Copies what is left of the first `parts` parts.
  void complete(int64 parts) {
    const int64 jobs = parts * source_.piece_count * source_.line_count;
    while (taken_ < jobs) {
      const auto lines = take();
      for (int64 row = 0; row < source_.rows(); ++row) {
        for (int across = 0; across < Source::kAcross; ++across) lines.copy(row, across);
      }
    }
  }

 private:
  struct Cursor {
    int64 part = 0, piece = 0, line = 0;

    JITSPARSE_INLINE void advance(const Source& source) {
      if (++line < source.line_count) return;
      line = 0;
      if (++piece < source.piece_count) return;
      piece = 0;
      ++part;
    }
  };

  const Source source_;
  const int32* const order_;
  const int64 jobs_;
  int64 taken_ = 0, fetched_ = 0;
  Cursor copy_, fetch_;
};

// The order in which block rows first need the parts of an operand.
class PartOrder {
 public:
  // Of the memory for it.
  static constexpr int64 bytes(int64 parts, int64 block_rows) { return (parts + block_rows) * int64(sizeof(int32)) + parts; }

  // Of block rows from .. to, whose blocks begin at row_ptr and need the parts `col`.
  PartOrder(char* memory, int64 parts, const int32* row_ptr, const int32* col, int64 from, int64 to)
      : order_(reinterpret_cast<int32*>(memory)), needed_(order_ + parts - from) {
    char* const seen = reinterpret_cast<char*>(needed_ + to);
    __builtin_memset(seen, 0, parts);
    int32 count = 0;
    for (int64 row = from; row < to; ++row) {
      for (int64 z = row_ptr[row]; z < row_ptr[row + 1]; ++z) {
        if (!seen[col[z]]) order_[count++] = col[z];
        seen[col[z]] = 1;
      }
      needed_[row] = count;
    }
    count_ = count;
  }

  const int32* parts() const { return order_; }
  int64 count() const { return count_; }
  // How many of them block rows up to `row` need.
  int64 needed(int64 row) const { return needed_[row]; }

 private:
  int32 *const order_, *const needed_;
  int64 count_;
};

}  // namespace jitsparse::cpu
