// The load of an sdd's busiest CTA, if tiles are assigned as tile_of_round of cuda/tile/order.cuh does.
#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"

namespace jitsparse::index {

// A number of tiles with the same load each.
struct Load {
  int64 load, tiles;
};

// Tiles are assigned in descending order of load, every other round backwards.
inline int64 busiest(std::vector<Load> loads) {
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return a.load > b.load; });
  int64 sums[kSms] = {};
  int64 of_all = 0, place = 0;  // of each CTA, from whole pairs of rounds; in a pair of rounds
  for (const Load& each : loads) {
    of_all += 2 * each.load * (each.tiles / (2 * kSms));
    for (int64 left = each.tiles % (2 * kSms); left > 0; --left) {
      sums[place < kSms ? place : 2 * kSms - 1 - place] += each.load;
      place = (place + 1) % (2 * kSms);
    }
  }
  return of_all + *std::max_element(sums, sums + kSms);
}

// Tiles counted by width, in columns.
class Widths {
 public:
  explicit Widths(int64 most) : tiles_(most + 1) {}

  // Adds `tiles` tiles that divide the columns evenly.
  void deal_out(int64 columns, int64 tiles) {
    if (!tiles) return;
    tiles_[columns / tiles] += tiles - columns % tiles;
    if (const int64 wider = columns % tiles) tiles_[columns / tiles + 1] += wider;
  }

  // Appends the tiles that have columns, with a cost by width.
  template <class Cost> void append_to(std::vector<Load>& loads, Cost cost) const {
    for (size_t width = 1; width < tiles_.size(); ++width) {
      if (tiles_[width]) loads.push_back({cost(int64(width)), tiles_[width]});
    }
  }

  int64 tiles() const {
    int64 sum = 0;
    for (size_t width = 1; width < tiles_.size(); ++width) sum += tiles_[width];
    return sum;
  }

 private:
  std::vector<int64> tiles_;
};

}  // namespace jitsparse::index
