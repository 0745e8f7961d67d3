// A cluster of Hopper blocks on a CPU, for kernels that use the names of focus_core/kernels/cuda/instructions.cu.
//
// Every thread is a fiber; warps take turns at random, and copies arrive late and at random, so that a value that is
// read before it is there, or written over while it is needed, shows. Memory that a copy is under way to holds NaN.
// What a block sends to another arrives as late, and in any order; at times one block is slower.

#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define INLINE static inline
#define INFINITE INFINITY
#define __global__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define __grid_constant__

struct Place { int x, y; };
static Place blockIdx, gridDim, threadIdx;

namespace machine {
#ifndef SLOW
#define SLOW 4
#endif
constexpr int threads = BLOCK_THREADS, warps = threads / 32;
constexpr u32 room = 232448;
struct Barrier { int need, pending, phase; i64 bytes; };
struct Warp { int count; i64 round; u64 given[2][32][6]; };
struct Block {
  std::vector<unsigned char> memory = std::vector<unsigned char>(room, 0xff);
  std::vector<Barrier> barriers = std::vector<Barrier>(room / 8);
  Warp warp[warps] = {};
  int met[15] = {};
  i64 meeting[15] = {};
};
struct Fiber { ucontext_t context; std::vector<char> stack; bool done, waits; i64 phase; };
struct Copy { int block; u32 to; const u16* from; u32 bytes, barrier, sent[4], step; };

static std::vector<Block> blocks;
static std::vector<Fiber> fibers;
static std::vector<Copy> copies;
static ucontext_t scheduler;
static int now, arrived, alive;
static i64 phase;

static void fail(const char* why) {
  printf("%s\n", why);
  exit(1);
}
static Block& block() { return blocks[now / threads]; }
static int lane() { return now % 32; }
static void enter(int fiber, int first) {
  now = fiber;
  blockIdx = {first + fiber / threads, 0};
  threadIdx = {fiber % threads, 0};
}
static void others() {
  const int fiber = now, first = blockIdx.x - fiber / threads;
  swapcontext(&fibers[fiber].context, &scheduler);
  enter(fiber, first);
}
static unsigned char* at(u32 place, u32 bytes) {
  if (place + bytes > room || place % bytes) fail("a place that is not there, or not aligned");
  return &block().memory[place];
}
// What all lanes give; each waits for the others.
static u64 (*together(std::initializer_list<u64> values))[6] {
  Warp& w = block().warp[now % threads / 32];
  const i64 round = w.round;
  int i = 0;
  for (u64 x : values) w.given[round & 1][lane()][i++] = x;
  if (++w.count == 32) w.count = 0, w.round++;
  while (w.round == round) others();
  return w.given[round & 1];
}
static void settle(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.need;
}
static void all_here() {
  if (arrived == alive) arrived = 0, phase++;
}
// What a copy writes, or NaN; with a step, lines of 128 bytes whose parts of 16 are swizzled.
static void fill(const Copy& c, bool poison) {
  const unsigned char* from = reinterpret_cast<const unsigned char*>(c.from ? c.from : (const void*)c.sent);
  const u32 part = c.step ? 16 : c.bytes;
  for (u32 i = 0; i < c.bytes / part; i++) {
    const u32 line = c.to + i / 8 * c.step, to = c.step ? line + (i % 8 ^ line / 128 % 8) * 16 : c.to;
    unsigned char* there = &blocks[c.block].memory[to];
    poison ? (void)memset(there, 0xff, part) : (void)memcpy(there, from + i * part, part);
  }
}
static void deliver(int which) {
  const Copy c = copies[which];
  copies.erase(copies.begin() + which);
  fill(c, false);
  Barrier& b = blocks[c.block].barriers[c.barrier / 8];
  b.bytes -= c.bytes;
  settle(b);
}
static std::function<void()> kernel;
static void body() {
  kernel();
  fibers[now].done = true;
  alive--;
  if (alive) all_here();
  swapcontext(&fibers[now].context, &scheduler);
}
// Runs one cluster, whose first block is `first`.
static void run(int size, int first) {
  blocks.assign(size, Block());
  fibers.assign(size * threads, Fiber());
  arrived = 0, phase = 0, alive = size * threads;
  for (Fiber& f : fibers) {
    f.stack.resize(24576);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    makecontext(&f.context, body, 0);
  }
  for (i64 turns = 0; alive; turns++) {
    if (turns > 20000000) fail("threads wait for each other without end");
    const int warp = rand() % (size * warps);
    if (size > 1 && turns / 2048 % (2 * size) == warp / warps && rand() % SLOW) continue;
    for (int more = rand() % 60; more >= 0; more--)
      for (int i = 0; i < 32; i++) {
        const int fiber = warp * 32 + i;
        if (fibers[fiber].done) continue;
        enter(fiber, first);
        swapcontext(&scheduler, &fibers[fiber].context);
      }
    while (!copies.empty() && rand() % 3 == 0) deliver(rand() % copies.size());
  }
}
}  // namespace machine

INLINE u32 shared_base() { return 0; }
INLINE u32 bits(float x) {
  u32 y;
  memcpy(&y, &x, 4);
  return y;
}
INLINE float number(u32 x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
INLINE void warp_sync() { machine::together({}); }
INLINE bool any(bool x) {
  auto given = machine::together({x});
  bool found = false;
  for (int i = 0; i < 32; i++) found |= given[i][0] != 0;
  return found;
}
INLINE u32 lane_of(u32 x, int lane) { return machine::together({x})[lane][0]; }
INLINE float other(float x, int mask) {
  auto given = machine::together({bits(x)});
  return number(given[machine::lane() ^ mask][0]);
}
INLINE float power(float x) { return exp2f(x); }
INLINE float low(u32 x) { return number(x << 16); }
INLINE float high(u32 x) { return number(x & 0xffff0000u); }
INLINE u32 rounded(float x) { return (bits(x) + 0x7fff + (bits(x) >> 16 & 1)) >> 16; }
INLINE u32 pair(float x, float y) { return rounded(x) | rounded(y) << 16; }
INLINE u32 load(u32 at) {
  u32 x;
  memcpy(&x, machine::at(at, 4), 4);
  return x;
}
INLINE void load(u32 at, float (&x)[2]) { memcpy(x, machine::at(at, 8), 8); }
INLINE void store(u32 at, u32 x) { memcpy(machine::at(at, 4), &x, 4); }
INLINE void store(u32 at, float x) { store(at, bits(x)); }
INLINE u32 load_global(const u16* from) { return from[0] | u32(from[1]) << 16; }
INLINE void store_global(float* to, const float* x) { memcpy(to, x, 8); }
INLINE void cluster_arrive() {
  machine::Fiber& f = machine::fibers[machine::now];
  if (f.waits) machine::fail("arrived twice");
  f.waits = true, f.phase = machine::phase;
  machine::arrived++;
  machine::all_here();
}
INLINE void cluster_wait() {
  while (machine::fibers[machine::now].phase == machine::phase) machine::others();
  machine::fibers[machine::now].waits = false;
}
INLINE void barrier_init(u32 at, u32 count) {
  machine::block().barriers[at / 8] = {static_cast<int>(count), static_cast<int>(count), 0, 0};
}
INLINE void barriers_ready() {}
INLINE void barrier_expect(u32 at, u32 bytes) {
  machine::Barrier& b = machine::block().barriers[at / 8];
  b.bytes += bytes, b.pending--;
  machine::settle(b);
}
INLINE void barrier_arrive(u32 at) {
  machine::Barrier& b = machine::block().barriers[at / 8];
  if (--b.pending < 0) machine::fail("more arrived than were expected");
  machine::settle(b);
}
INLINE void barrier_wait(u32 at, u32 parity) {
  while (machine::block().barriers[at / 8].phase == static_cast<int>(parity)) machine::others();
}
INLINE void barrier_wait_cluster(u32 at, u32 parity) { barrier_wait(at, parity); }
template <int COUNT>
INLINE void some_sync(int team) {
  machine::Block& b = machine::block();
  const i64 meeting = b.meeting[team];
  if (++b.met[team] == COUNT) b.met[team] = 0, b.meeting[team]++;
  while (b.meeting[team] == meeting) machine::others();
}
INLINE void send(u32 at, u32 rank, const u32 (&x)[4], u32 barrier) {
  machine::at(at, 16);
  machine::copies.push_back({static_cast<int>(rank), at, nullptr, 16, barrier, {x[0], x[1], x[2], x[3]}});
}
INLINE void send(u32 at, u32 rank, u32 x, u32 barrier) {
  machine::at(at, 4);
  machine::copies.push_back({static_cast<int>(rank), at, nullptr, 4, barrier, {x}});
}
// What a tensor map describes; its box has some tokens of some pieces of 64 numbers.
struct Map { const u16* from; i64 row_step, token_step; int tokens, box, pieces; };
static void copy_box_of(int block, u32 to, const Map& map, int token, int columns, int row, u32 barrier) {
  static const u16 nothing[4096] = {};
  if (to % 1024) machine::fail("a box whose place the swizzle does not suit");
  for (int r = 0; r < map.box; r++) {
    const u16* from = map.from + row * map.row_step + (token + r) * map.token_step + columns * 64;
    const u16* real = token + r < map.tokens ? from : nothing;
    const u32 step = map.box * 128;
    machine::copies.push_back({block, to + r * 128, real, 128u * map.pieces, barrier, {}, step});
    machine::fill(machine::copies.back(), true);
  }
}
INLINE void copy_box(u32 to, const Map& map, int token, int columns, int row, u32 barrier) {
  copy_box_of(machine::now / machine::threads, to, map, token, columns, row, barrier);
}
template <int BLOCKS>
INLINE void copy_box_to_all(u32 to, const Map& map, int token, int columns, int row, u32 barrier) {
  for (int block = 0; block < BLOCKS; block++) copy_box_of(block, to, map, token, columns, row, barrier);
}
static void fragments(u32 (&x)[4], u32 row, bool turned) {
  auto given = machine::together({row});
  const int lane = machine::lane();
  for (int i = 0; i < 4; i++) {
    x[i] = 0;
    for (int e = 0; e < 2; e++) {
      const int line = turned ? lane % 4 * 2 + e : lane / 4, place = turned ? lane / 4 : lane % 4 * 2 + e;
      u16 found;
      memcpy(&found, machine::at(given[i * 8 + line][0], 16) + place * 2, 2);
      x[i] |= u32(found) << 16 * e;
    }
  }
  warp_sync();
}
INLINE void matrices(u32 (&x)[4], u32 row) { fragments(x, row, false); }
INLINE void turned_matrices(u32 (&x)[4], u32 row) { fragments(x, row, true); }
// mma.m16n8k16, by the tables of the PTX manual.
INLINE void multiply(float (&c)[4], const u32 (&a)[4], const u32* b) {
  auto given = machine::together({a[0], a[1], a[2], a[3], b[0], b[1]});
  const int lane = machine::lane();
  for (int e = 0; e < 4; e++) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; k++) {
      const u32 left = given[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
      const u32 right = given[column * 4 + k % 8 / 2][4 + k / 8];
      c[e] += (k % 2 ? high(left) * high(right) : low(left) * low(right));
    }
  }
}
