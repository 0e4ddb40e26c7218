// Packing beside multiplying: lines of a strip's panels are copied one by one between multiply-adds.
//
// With few blocks per row, every packed line serves few multiply-adds. Packing them first, a block row at a time, takes a tenth of a
// product at density 0.1: the multipliers wait while lines come from the L3 cache. A burst of prefetches before that is no faster, since
// a core fetches only some 16 lines at a time, and lines of panels on their way from L2 to L1 are among them. One line every few steps,
// prefetched some thousand steps before it is copied, costs almost nothing.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// Lines of L elements to copy, and as many others to prefetch. Steps are in elements.
template <class T, int L> struct LineCopies {
  const T *from, *fetch;
  int64 from_step;
  Acc<T>* to;
  int64 to_step;

  JITSPARSE_INLINE void copy(int64 i) const {
    __builtin_prefetch(fetch + i * from_step, 0, kIntoL2);
    store<L, Acc<T>>(to + i * to_step, load<L>(from + i * from_step));
  }
};

// The parts of a strip's operand in the order in which its block rows first need them. A part is packed as `pieces` times `lines` jobs,
// each a few LineCopies; `Source` says which.
template <class Source> class PackingQueue {
 public:
  // Of the memory for it.
  static constexpr int64 bytes(int64 parts, int64 block_rows) { return (parts + block_rows) * int64(sizeof(int32)) + parts; }

  // Block rows from .. to, whose blocks begin at row_ptr and are in columns `col`.
  PackingQueue(char* memory, const Source& source, int64 parts, const int32* row_ptr, const int32* col, int64 from, int64 to)
      : source_(source), order_(reinterpret_cast<int32*>(memory)), needed_(order_ + parts - from) {
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
    jobs_ = count * jobs_of_a_part();
  }

  bool empty() const { return taken_ >= jobs_; }

  // The next job; once the queue is empty, the last again. The lines to prefetch are those of a later one.
  JITSPARSE_INLINE typename Source::Lines take() {
    constexpr int64 kAhead = 12;
    while (fetched_ < taken_ + kAhead && fetched_ + 1 < jobs_) {
      fetch_.advance(source_);
      ++fetched_;
    }
    auto lines = source_.lines(order_[copy_.part], copy_.piece, copy_.line);
    lines.fetch = source_.from(order_[fetch_.part], fetch_.piece, fetch_.line);
    if (++taken_ < jobs_) copy_.advance(source_);
    return lines;
  }

  // Packs what a block row needs and is not packed yet.
  void complete(int64 row) {
    const int64 jobs = needed_[row] * jobs_of_a_part();
    while (taken_ < jobs) {
      const auto lines = take();
      for (int i = 0; i < Source::kLines; ++i) lines.copy(i);
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

  int64 jobs_of_a_part() const { return source_.piece_count * source_.line_count; }

  const Source& source_;
  int32* const order_;
  int32* const needed_;  // parts, up to each block row
  int64 jobs_, taken_ = 0, fetched_ = 0;
  Cursor copy_, fetch_;
};

}  // namespace jitsparse::cpu
