// Jumps between stacks are what is meant here.
#undef _FORTIFY_SOURCE
#include "emulator.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace emulation {

// ---- threads

constexpr int kStackBytes = 256 << 10;

using Group = std::vector<std::function<void()>>;

// Groups that wait for their turn, and the one that is still open.
struct Queue {
  std::deque<Group> groups;
  Group open;
};

struct Thread {
  ucontext_t start;
  jmp_buf place;  // where it goes on, once it has started
  bool started = false;
  const std::function<bool()>* ready = nullptr;  // what it waits for, which the scheduler asks
  bool done = false;
  Queue begun[3];                  // of each kind
  std::vector<unsigned> unfenced;  // shared memory that it has written and not shown to TMA yet, two bytes each

  Queue& of(Begun kind) { return begun[int(kind)]; }
};

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

struct Mbarrier {
  int arrivals, left, bytes;
  unsigned phase;
};

struct Cta {
  void (*body)(const void*);
  const void* params;
  std::vector<Thread> threads;
  std::vector<Barrier> warps;
  std::vector<std::vector<void*>> shown;  // of each warp, what its lanes show each other
  std::map<int, Barrier> named;
  std::map<unsigned, Mbarrier> mbarriers;  // by address
  std::vector<int> unfenced;               // which thread's each two bytes of shared memory are in this sense; -1: nobody's
  std::deque<std::function<void()>> bulk_loads;
  std::set<void*> poisoned;  // static variables
  jmp_buf scheduler, outside;
  const char* failed = nullptr;
  unsigned long progress = 0;
};
Cta* cta;
unsigned block, grid;
int sm_count, current;

// By a jump, since an exception cannot leave a fiber.
void fail(const char* what) {
  cta->failed = what;
  _longjmp(cta->outside, 1);
}

Thread& self() { return cta->threads[current]; }

// From a thread to the scheduler and back. swapcontext does the same in a third of a microsecond, since it asks the system for the
// mask of signals.
void leave() {
  if (!_setjmp(self().place)) _longjmp(cta->scheduler, 1);
}
void enter(Thread& thread) {
  if (_setjmp(cta->scheduler)) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  setcontext(&thread.start);
}

template <typename Ready>
void wait_until(const Ready& ready) {
  if (!ready()) {
    const std::function<bool()> asked = std::cref(ready);
    self().ready = &asked;
    leave();
    self().ready = nullptr;
  }
  ++cta->progress;
}

void arrive_and_wait(Barrier& barrier, int expected) {
  const unsigned generation = barrier.generation;
  ++cta->progress;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    wait_until([&] { return barrier.generation != generation; });
  }
}

void sync_warp() { arrive_and_wait(cta->warps[thread() / 32], 32); }
void named_barrier(int name, int threads) { arrive_and_wait(cta->named[name], threads); }
void sync_cta() { named_barrier(0, int(cta->threads.size())); }

void** show(void* mine) {
  auto& shown = cta->shown[thread() / 32];
  shown[lane()] = mine;
  return shown.data();
}

void later(Begun kind, std::function<void()> work) { self().of(kind).open.push_back(std::move(work)); }

void commit(Begun kind) {
  Queue& queue = self().of(kind);
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
}

void finish(Begun kind, std::size_t pending) {
  auto& groups = self().of(kind).groups;
  while (groups.size() > pending) {
    for (auto& each : groups.front()) each();
    groups.pop_front();
  }
}

void start_thread() {
  cta->body(cta->params);
  Thread& here = self();
  for (const Queue& each : here.begun) {
    if (!each.open.empty()) fail("work that no group has at the end of a thread");
  }
  if (!here.of(Begun::products).groups.empty()) fail("wgmma left at the end of a thread");
  for (auto& group : here.of(Begun::copies).groups) {
    if (!group.empty()) fail("cp.async left at the end of a thread");
  }
  for (auto& group : here.of(Begun::stores).groups) {
    if (!group.empty()) fail("a bulk store that reads shared memory after the thread's end");
  }
  here.done = true;
  ++cta->progress;
  leave();
}

std::vector<std::unique_ptr<char[]>> stacks;  // of one CTA after another

void prepare(Cta& here, int threads) {
  here.threads.resize(threads);
  here.warps.resize(threads / 32);
  here.shown.assign(threads / 32, std::vector<void*>(32));
  here.unfenced.assign(shared_bytes / 2, -1);
  std::memset(memory, 0xff, shared_bytes);
  while (stacks.size() < here.threads.size()) stacks.emplace_back(new char[kStackBytes]);
  for (int i = 0; i < threads; ++i) {
    ucontext_t& start = here.threads[i].start;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks[i].get();
    start.uc_stack.ss_size = kStackBytes;
    start.uc_link = nullptr;
    makecontext(&start, start_thread, 0);
  }
}

void schedule(Cta& here) {
  const int threads = int(here.threads.size());
  // One warp runs only where no other thread can go on: what nobody waits for it to do is not done yet.
  const int late_warp = int(block) % (threads / 32);
  bool late = false;
  for (bool backwards = false;; backwards = !backwards) {
    const unsigned long before = here.progress;
    bool all_done = true;
    for (int i = 0; i < threads; ++i) {
      current = backwards ? threads - 1 - i : i;
      if (self().done) continue;
      all_done = false;
      if ((current / 32 == late_warp) != late) continue;
      if (self().ready && !(*self().ready)()) continue;
      enter(self());
    }
    if (all_done) break;
    if (here.progress == before && late) {
      if (here.bulk_loads.empty()) fail("no thread can go on");
      here.bulk_loads.front()();
      here.bulk_loads.pop_front();
    }
    late = here.progress == before && !late;
  }
  if (!here.bulk_loads.empty()) fail("bulk copies left at the end of a CTA");
  for (auto& [_, each] : here.mbarriers) {
    if (each.left != each.arrivals || each.bytes) fail("a phase of an mbarrier is unfinished at the end of a CTA");
  }
}

// While it lives, what the processor refuses ends the run.
class Refusals {
 public:
  Refusals() {
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
      fail(signal == SIGILL ? "an access that is not aligned" : "an access where no memory is");
    };
    action.sa_flags = SA_NODEFER;  // since the handler does not return
    sigaction(SIGILL, &action, &before_[0]);
    sigaction(SIGSEGV, &action, &before_[1]);
  }
  ~Refusals() {
    sigaction(SIGILL, &before_[0], nullptr);
    sigaction(SIGSEGV, &before_[1], nullptr);
  }

 private:
  struct sigaction before_[2];
};

const char* run(int threads, unsigned shared, unsigned ctas, void (*body)(const void*), const void* params) {
  const Refusals refusals;
  shared_bytes = shared;
  grid = ctas;
  for (block = 0; block < grid; ++block) {
    Cta here;
    here.body = body;
    here.params = params;
    cta = &here;
    prepare(here, threads);
    if (_setjmp(here.outside)) return here.failed;
    schedule(here);
  }
  return nullptr;
}

// ---- memory

alignas(1024) unsigned char memory[kMaxShared];
unsigned shared_bytes;

void poison(void* variable, std::size_t bytes) {
  if (cta->poisoned.insert(variable).second) std::memset(variable, 0xff, bytes);
}

void written(unsigned address, unsigned bytes) {
  for (unsigned at = address; at < address + bytes; at += 2) {
    cta->unfenced[(at - kSharedBase) / 2] = thread();
    self().unfenced.push_back(at);
  }
}

void fence_proxy_async() {
  for (unsigned at : self().unfenced) {
    int& whose = cta->unfenced[(at - kSharedBase) / 2];
    if (whose == thread()) whose = -1;
  }
  self().unfenced.clear();
}

std::vector<std::pair<const char*, const char*>> readable;  // the operands

void check_inside(const char* from, int bytes) {
  for (auto& [first, end] : readable) {
    if (from >= first && from + bytes <= end) return;
  }
  fail("read outside of the operands");
}

void check_read(const void* from, int bytes) {
  check_inside(static_cast<const char*>(from), bytes);
  if (reinterpret_cast<std::size_t>(from) % bytes) fail("misaligned read of an operand");
}

// ---- products

// An operand of wgmma as its descriptor says: element (i, k), i along m or n.
struct Operand {
  unsigned start, leading, stride;
  int row_bytes;

  explicit Operand(unsigned long long descriptor)
      : start((descriptor & 0x3fff) << 4),
        leading((descriptor >> 16 & 0x3fff) << 4),
        stride((descriptor >> 32 & 0x3fff) << 4),
        row_bytes(descriptor >> 62 == 1 ? 128 : descriptor >> 62 == 2 ? 64 : 32) {}

  // So many elements from (i, k), along i or k as they lie in a row; no more than 16 bytes, to which they are aligned.
  template <int COUNT, typename Element>
  void get(Element* elements, bool across, int i, int k) const {
    constexpr int kBytes = sizeof(Element);
    const int in_row = across ? i * kBytes % row_bytes : k * kBytes, row = across ? k : i, tile = across ? i * kBytes / row_bytes : 0;
    const unsigned address = start + tile * leading + row / 8 * stride + row % 8 * row_bytes + in_row;
    std::memcpy(elements, at(swizzled(address, row_bytes), COUNT * kBytes), COUNT * kBytes);
  }

  // Two neighbours along i, for all k.
  template <typename Element, int K>
  void get_two(Element (&elements)[2][K], bool across, int i) const {
    constexpr int kUnit = 16 / sizeof(Element);
    for (int k = 0; across && k < K; ++k) {
      Element two[2];
      get<2>(two, across, i, k);
      elements[0][k] = two[0], elements[1][k] = two[1];
    }
    for (int e = 0; !across && e < 2; ++e) {
      for (int k = 0; k < K; k += kUnit) get<kUnit>(elements[e] + k, across, i + e, k);
    }
  }
};

// Elements of 32 bytes of k, and what they are as numbers.
struct Bf16 {
  using Element = unsigned short;
  static float value(Element x) { return from_bf16(x); }
};
struct F16 {
  using Element = unsigned short;
  // Without instructions for it, a conversion is a call.
  static float value(Element x) {
    static const auto values = [] {
      std::vector<float> found(1 << 16);
      for (int bits = 0; bits < 1 << 16; ++bits) found[bits] = from_f16(Element(bits));
      return found;
    }();
    return values[x];
  }
};
struct Tf32 {
  using Element = unsigned;
  static float value(Element x) { return __uint_as_float(x & 0xffffe000); }
};
template <typename Type>
constexpr int kDepth = 32 / sizeof(typename Type::Element);

// With a thread's two rows of the left operand.
template <typename Type>
void multiply_rows(float* c, int registers, const float (&left)[2][kDepth<Type>], const Operand& b, bool b_across) {
  for (int j = 0; j < registers / 4; ++j) {
    typename Type::Element columns[2][kDepth<Type>];
    b.get_two(columns, b_across, j * 8 + lane() % 4 * 2);
    float sums[4];
    std::memcpy(sums, c + 4 * j, sizeof sums);
    for (int k = 0; k < kDepth<Type>; ++k) {
      const float right[2] = {Type::value(columns[0][k]), Type::value(columns[1][k])};
      for (int e = 0; e < 4; ++e) sums[e] += left[e / 2][k] * right[e % 2];
    }
    std::memcpy(c + 4 * j, sums, sizeof sums);
  }
}

template <typename Type>
void multiply_shared(float* c, int registers, const Operand& a, bool a_across, const Operand& b, bool b_across) {
  const int row = thread() / 32 % 4 * 16 + lane() / 4;
  float left[2][kDepth<Type>];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < kDepth<Type>; ++k) {
      typename Type::Element element;
      a.get<1>(&element, a_across, row + half * 8, k);
      left[half][k] = Type::value(element);
    }
  }
  multiply_rows<Type>(c, registers, left, b, b_across);
}

// Of a fragment a lane has one register of every four k, or two neighbours of every eight.
template <typename Type>
void multiply_fragment(float* c, int registers, const unsigned (&a)[4], const Operand& b, bool b_across) {
  using Element = typename Type::Element;
  constexpr int kPacked = 4 / sizeof(Element), kK = kDepth<Type>;
  unsigned mine[4];
  std::memcpy(mine, a, sizeof mine);
  float left[2][kK];
  exchange(mine, [&](const auto& all) {
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kK; ++k) {
        const unsigned bits = all(lane() / 4 * 4 + k / kPacked % 4)[k / (kK / 2) * 2 + half];
        Element element;
        std::memcpy(&element, reinterpret_cast<const Element*>(&bits) + k % kPacked, sizeof element);
        left[half][k] = Type::value(element);
      }
    }
  });
  multiply_rows<Type>(c, registers, left, b, b_across);
}

template <typename Use>
void with_type(Number number, const Use& use) {
  switch (number) {
    case Number::bf16: return use(Bf16());
    case Number::f16: return use(F16());
    case Number::tf32: return use(Tf32());
  }
}

void multiply(float* c, int registers, Number number, unsigned long long a, bool a_across, unsigned long long b, bool b_across) {
  with_type(number, [&](auto type) {
    later(Begun::products, [=] { multiply_shared<decltype(type)>(c, registers, Operand(a), a_across, Operand(b), b_across); });
  });
}

void multiply(float* c, int registers, Number number, const unsigned (&a)[4], unsigned long long b, bool b_across) {
  with_type(number, [&](auto type) {
    later(Begun::products, [=, &a] { multiply_fragment<decltype(type)>(c, registers, a, Operand(b), b_across); });
  });
}

// ---- bulk copies

Mbarrier& mbarrier(unsigned address) {
  const auto found = cta->mbarriers.find(address);
  if (found == cta->mbarriers.end()) fail("an mbarrier that was not initialised");
  return found->second;
}

void settle(Mbarrier& barrier) {
  ++cta->progress;
  if (barrier.left < 0) fail("too many arrivals at an mbarrier");
  if (barrier.left > 0 || barrier.bytes != 0) return;
  barrier.left = barrier.arrivals;
  ++barrier.phase;
}

// Calls each(place of the box in shared memory, the tensor's elements there, where they begin in the place, their bytes) for every 16
// bytes of a box: of the tensor there may be a part or, past its edge, nothing.
template <typename Each>
void for_each_unit(const CUtensorMap& map, unsigned shared, int x, int y, int z, const Each& each) {
  const int bytes = map.item_bytes, row_bytes = map.box.inner * bytes, unit = 16 / bytes;
  if (row_bytes % 16) fail("a box whose rows are not of whole 16 bytes");
  if (shared % (8 * row_bytes)) fail("a box that does not begin where its swizzle does");
  for (int r = 0; r < map.box.outer; ++r) {
    const long long j = y + r;
    const bool row_inside = j >= 0 && j < map.shape.outer && z >= 0 && z < map.shape.batch;
    for (int c = 0; c < map.box.inner; c += unit) {
      const long long i = x + c, first = std::max(0ll, -i), last = std::min<long long>(unit, map.shape.inner - i);
      unsigned char* place = at(swizzled(shared + r * row_bytes + c * bytes, row_bytes), 16);
      if (row_inside && first < last) {
        char* element = map.base + bytes * (i + first + j * map.shape.ld + z * map.shape.batch_stride);
        each(place, element, int(first) * bytes, int(last - first) * bytes);
      } else {
        each(place, nullptr, 0, 0);
      }
    }
  }
}

// TMA rounds float32 numbers to TF32 where a map says so, as all of ours do.
void round_to_tf32(unsigned char* numbers, int bytes) {
  for (int i = 0; i < bytes; i += 4) {
    unsigned bits;
    std::memcpy(&bits, numbers + i, 4);
    bits = to_tf32(bits);
    std::memcpy(numbers + i, &bits, 4);
  }
}

}  // namespace emulation

namespace jitsparse::ptx {

void mbarrier_init(unsigned barrier, int arrivals) {
  emulation::at(barrier, 8);
  emulation::cta->mbarriers[barrier] = {arrivals, arrivals, 0, 0};
}
void mbarrier_arrive(unsigned barrier) { mbarrier_arrive_expect_tx(barrier, 0); }
void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
  auto& here = emulation::mbarrier(barrier);
  here.bytes += bytes;
  --here.left;
  emulation::settle(here);
}

bool mbarrier_test_wait(unsigned barrier, unsigned parity) { return (emulation::mbarrier(barrier).phase & 1) != parity; }

void mbarrier_wait(unsigned barrier, unsigned parity) {
  emulation::wait_until([=] { return mbarrier_test_wait(barrier, parity); });
}

void tma_load_3d(unsigned shared, const CUtensorMap* map, unsigned barrier, int x, int y, int z, uint64) {
  emulation::for_each_unit(*map, shared, x, y, z, [](unsigned char* to, const char*, int, int) { std::memset(to, 0xff, 16); });
  emulation::cta->bulk_loads.push_back([=] {
    emulation::for_each_unit(*map, shared, x, y, z, [=](unsigned char* to, const char* from, int first, int bytes) {
      std::memset(to, 0, 16);
      if (!from) return;
      emulation::check_inside(from, bytes);
      std::memcpy(to + first, from, bytes);
      if (map->item_bytes == 4) emulation::round_to_tf32(to + first, bytes);
    });
    auto& here = emulation::mbarrier(barrier);
    here.bytes -= map->box.inner * map->box.outer * map->item_bytes;
    emulation::settle(here);
  });
}

void tma_store_3d(const CUtensorMap* map, unsigned shared, int x, int y, int z, uint64) {
  const unsigned bytes = map->box.inner * map->box.outer * map->item_bytes;
  const unsigned char* from = emulation::at(shared, 1);
  emulation::at(shared + bytes - 1, 1);
  const auto unfenced = emulation::cta->unfenced.begin() + (shared - emulation::kSharedBase) / 2;
  if (std::any_of(unfenced, unfenced + bytes / 2, [](int whose) { return whose >= 0; })) {
    emulation::fail("a bulk store of what no fence.proxy.async has shown");
  }
  // It may be read at once, or as late as the kernel waits for.
  const std::vector<unsigned char> now(from, from + bytes);
  emulation::later(emulation::Begun::stores, [=] {
    if (std::memcmp(now.data(), from, bytes)) emulation::fail("shared memory changed under a bulk store");
    emulation::for_each_unit(*map, shared, x, y, z, [](const unsigned char* from, char* to, int first, int bytes) {
      if (to) std::memcpy(to, from + first, bytes);
    });
  });
}

}  // namespace jitsparse::ptx

// Where operands lie: pairs of addresses.
extern "C" void allow_reads(const long long* ranges, int count) {
  emulation::readable.clear();
  for (int i = 0; i < count; ++i) {
    emulation::readable.emplace_back(reinterpret_cast<const char*>(ranges[2 * i]), reinterpret_cast<const char*>(ranges[2 * i + 1]));
  }
}

extern "C" void set_sm_count(int count) { emulation::sm_count = count; }
