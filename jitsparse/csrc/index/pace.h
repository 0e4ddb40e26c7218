// The order in which panels take their steps; jitsparse/pace.py explains which, and why.
#pragma once

#include <algorithm>
#include <limits>

#include "index/panels.h"
#include "index/parallel.h"

namespace jitsparse::index {

// Panels and their steps, in the order in which CTAs take them.
struct Walk {
  Panels panels;
  std::vector<int32> order;  // of the panels
  Rows starts;               // where each 64 rows of a panel begin, in units of 64
  int64 minors, across;      // blocks along k, and of a slab
  int64 extent;              // of a block in the panel, in elements

  int64 decisions() const { return div_up(minors, across * kSlabsTogether); }
  int64 sets() const { return div_up(panels.count(), kNeighbours); }

  bool worth_ordering() const {
    const bool few = decisions() <= kMaxDecisions && sets() * decisions() * decisions() <= kMaxSlabPairs;
    return few && extent < 128 && decisions() > 1 && panels.count() > 1;
  }
};

// A set of panels that are computed side by side.
class Set {
 public:
  Set(Walk& walk, int64 set)
      : walk_(walk),
        begin_(set * kNeighbours),
        panels_(std::min(walk.panels.count() - begin_, kNeighbours)),
        decisions_(walk.decisions()) {}

  // Call before the steps of any panel are moved: a step ends where the next begins.
  void decide() {
    // Panels are sorted by length, so if the first has no steps, none has.
    if (!walk_.panels.length(walk_.order[begin_])) return;
    measure();
    turns_ = herd();
  }

  void sort() {
    for (int64 i = 0; i < panels_; ++i) sort(walk_.order[begin_ + i]);
  }

 private:
  double* costs(int64 panel) { return &costs_[panel * decisions_]; }

  // How much more each panel copies for each few slabs than the mean of the set, times the panels of the set. In blocks: whole numbers.
  void measure() {
    costs_.resize(panels_ * decisions_);
    const double dense = double(walk_.across * kTileColumns / walk_.extent);
    const auto& steps = walk_.panels.steps;
    for (int64 i = 0; i < panels_; ++i) {
      const int32 panel = walk_.order[begin_ + i];
      for (int32 step = walk_.panels.pointers[panel]; step < walk_.panels.pointers[panel + 1]; ++step) {
        const bool last = step + 1 == int32(steps.size());
        const int64 end = last ? int64(walk_.panels.blocks.size()) : steps[step + 1].first;
        costs(i)[steps[step].slab / kSlabsTogether] += double(end - steps[step].first) + dense;
      }
    }
    for (int64 d = 0; d < decisions_; ++d) {
      double sum = 0;
      for (int64 i = 0; i < panels_; ++i) sum += costs(i)[d];
      for (int64 i = 0; i < panels_; ++i) costs(i)[d] = costs(i)[d] * double(panels_) - sum;
    }
  }

  // The turn of each decision. With b the sum of the costs so far, the next is the c that minimises |c|^2 + 2 b c.
  std::vector<int32> herd() {
    std::vector<double> added(decisions_);
    for (int64 i = 0; i < panels_; ++i) {
      for (int64 d = 0; d < decisions_; ++d) added[d] += costs(i)[d] * costs(i)[d];
    }
    std::vector<int32> turns(decisions_);
    for (int64 turn = 0; turn < decisions_; ++turn) {
      const int64 next = std::min_element(added.begin(), added.end()) - added.begin();
      turns[next] = int32(turn);
      for (int64 i = 0; i < panels_; ++i) {
        const double twice = 2 * costs(i)[next];
        const double* c = costs(i);
#pragma omp simd
        for (int64 d = 0; d < decisions_; ++d) added[d] += twice * c[d];
      }
      added[next] = std::numeric_limits<double>::infinity();  // stays infinite
    }
    return turns;
  }

  void sort(int32 panel) {
    const int32 first = walk_.panels.pointers[panel], count = int32(walk_.panels.length(panel));
    steps_.assign(walk_.panels.steps.begin() + first, walk_.panels.steps.begin() + first + count);
    keys_.clear();
    for (int32 i = 0; i < count; ++i) {
      const int32 slab = steps_[i].slab;
      keys_.push_back((int64(turns_[slab / kSlabsTogether]) * kSlabsTogether + slab % kSlabsTogether) << 32 | i);
    }
    std::sort(keys_.begin(), keys_.end());
    for (int32 i = 0; i < count; ++i) walk_.panels.steps[first + i] = steps_[keys_[i] & 0xffffffff];
  }

  Walk& walk_;
  int64 begin_, panels_, decisions_;
  std::vector<double> costs_;
  std::vector<int32> turns_;
  std::vector<Step> steps_;   // of a panel
  std::vector<int64> keys_;
};

// Sorts the steps of each walk so that the panels of a set share an order; each panel keeps its own steps.
inline void keep_pace(std::vector<Walk*> walks, int64 threads) {
  walks.erase(std::remove_if(walks.begin(), walks.end(), [](const Walk* each) { return !each->worth_ordering(); }), walks.end());
  std::vector<Set> sets;
  for (Walk* each : walks) {
    for (int64 set = 0; set < each->sets(); ++set) sets.emplace_back(*each, set);
  }
  in_parallel(int64(sets.size()), threads, [&](int64 i) { sets[i].decide(); });
  in_parallel(int64(sets.size()), threads, [&](int64 i) { sets[i].sort(); });
}

}  // namespace jitsparse::index
