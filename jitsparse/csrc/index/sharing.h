// Which panels of an sdd share tiles; jitsparse/sharing.py explains how and why.
#pragma once

#include "index/matching.h"
#include "index/panels.h"

namespace jitsparse::index {

constexpr int64 kRuns = 1 + kPairings;  // of a panel: the steps in no pairing, then those of each pairing

// Which steps of panels share tiles, and with which panels.
struct Shares {
  std::vector<int32> pairing;  // of each step, 1 to kPairings if the partner of that pairing has the same column, else 0
  std::vector<int32> partner;  // (panels, kRuns): the other panel of each pairing; the panel itself if none
};

inline Shares nothing_shared(const Panels& panels) {
  Shares shares{std::vector<int32>(panels.steps.size()), {}};
  for (int64 panel = 0; panel < panels.count(); ++panel) shares.partner.insert(shares.partner.end(), kRuns, int32(panel));
  return shares;
}

// Pairs the panels of a window, greedily, kPairings times.
class SharingWindow {
 public:
  SharingWindow(const Panels& panels, const GatherArgs& gather, int64 begin, Shares& shares)
      : panels_(panels),
        begin_(begin),
        count_(std::min(panels.count() - begin, kSharingWindow)),
        most_(gather.most / 2),
        fewest_(gather.fewest),
        left_(kSharingWindow, gather.minors),
        shares_(shares) {
    for (int64 i = 0; i < count_; ++i) each_step(i, [&](int32 step) { left_.insert(i, panels_.steps[step].slab); });
  }

  void share() {
    for (int32 pairing = 1; pairing <= kPairings; ++pairing) pair(pairing);
  }

 private:
  template <class Visit> void each_step(int64 i, Visit visit) const {
    for (int32 step = panels_.pointers[begin_ + i]; step < panels_.pointers[begin_ + i + 1]; ++step) visit(step);
  }

  void pair(int32 pairing) {
    Table taken(kSharingWindow, 0), weights(kSharingWindow, kNoPair);
    for (int64 i = 0; i < kSharingWindow; ++i) {
      for (int64 j = 0; j < i; ++j) {
        taken.set(i, j, whole_tiles(left_.shared(i, j)));
        weights.set(i, j, taken.at(i, j) * kSharingWindow * kSharingWindow + in_no_order(kSharingWindow, i, j));
      }
    }
    const std::vector<int32> partner = match(weights, kSharingRounds);
    for (int64 i = 0; i < count_; ++i) {
      const int64 other = partner[i], columns = taken.at(i, other);
      if (!columns) continue;
      shares_.partner[(begin_ + i) * kRuns + pairing] = int32(begin_ + other);
      if (i < other) take(i, other, columns, pairing);
    }
  }

  // As many columns as fill whole tiles, or a single one at least half as wide.
  int64 whole_tiles(int64 shared) const {
    return shared >= most_ ? shared / most_ * most_ : shared >= fewest_ ? shared : 0;
  }

  // Gives the pairing the first columns that both have left.
  void take(int64 a, int64 b, int64 columns, int32 pairing) {
    std::vector<uint64> chosen(left_.words());
    for (int64 w = 0; columns; ++w) {
      for (uint64 common = left_[a][w] & left_[b][w]; common && columns; common &= common - 1, --columns) {
        chosen[w] |= common & -common;
      }
    }
    for (int64 i : {a, b}) {
      each_step(i, [&](int32 step) {
        const int32 column = panels_.steps[step].slab;
        if (chosen[column / 64] >> column % 64 & 1) shares_.pairing[step] = pairing;
      });
      for (int64 w = 0; w < left_.words(); ++w) left_[i][w] &= ~chosen[w];
    }
  }

  const Panels& panels_;
  int64 begin_, count_, most_, fewest_;
  ColumnSets left_;
  Shares& shares_;
};

// Whether panels can be paired, and are few enough.
inline bool may_pair(const Panels& panels, const GatherArgs& gather) {
  const int64 pairs = div_up(panels.count(), kSharingWindow) * kSharingWindow * kSharingWindow;
  // Each pair of panels has a few weights, too, however few columns there are.
  const bool few = pairs * std::max<int64>(gather.minors, 64) <= kMaxPanelComparisons;
  return panels.count() >= 2 && gather.minors >= gather.fewest && few;
}

inline Shares share(const Panels& panels, const GatherArgs& gather) {
  Shares shares = nothing_shared(panels);
  for (int64 begin = 0; begin < panels.count(); begin += kSharingWindow) SharingWindow(panels, gather, begin, shares).share();
  return shares;
}

}  // namespace jitsparse::index
