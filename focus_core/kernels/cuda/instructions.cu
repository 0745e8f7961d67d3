// What the instruction set has and the language has not. No headers: a machine may have none.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define INLINE static __device__ __forceinline__
#define INFINITE __int_as_float(0x7f800000)

extern __shared__ __align__(128) unsigned char room[];

INLINE u32 shared_base() { return static_cast<u32>(__cvta_generic_to_shared(room)); }
INLINE u32 bits(float x) { return __float_as_uint(x); }
INLINE float number(u32 x) { return __uint_as_float(x); }
INLINE bool any(bool x) { return __any_sync(0xffffffffu, x); }
INLINE void warp_sync() { __syncwarp(); }
INLINE float other(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

INLINE u32 lane_of(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

INLINE float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#if BF16
#define KIND "bf16"
INLINE float low(u32 x) { return number(x << 16); }
INLINE float high(u32 x) { return number(x & 0xffff0000u); }
#else
#define KIND "f16"
INLINE float low(u32 x) {
  float y;
  asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.f32.f16 %0, a;}" : "=f"(y) : "r"(x));
  return y;
}
INLINE float high(u32 x) { return low(x >> 16); }
#endif

INLINE u32 pair(float x, float y) {
  u32 both;
  asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}

INLINE u32 load(u32 at) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
INLINE void load(u32 at, float (&x)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(at) : "memory");
}
INLINE void store(u32 at, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
INLINE void store(u32 at, float x) { store(at, bits(x)); }
INLINE u32 load_global(const u16* from) { return __ldg(reinterpret_cast<const u32*>(from)); }
INLINE void store_global(float* to, const float* x) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x[0]), "f"(x[1]) : "memory");
}

INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Sends to the shared memory of block `rank`, whose barrier at the same place counts the bytes.
INLINE void send(u32 at, u32 rank, const u32 (&x)[4], u32 barrier) {
  u32 there, counts;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(barrier), "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(there), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(counts)
               : "memory");
}
INLINE void send(u32 at, u32 rank, u32 x, u32 barrier) {
  u32 there, counts;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(barrier), "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there), "r"(x),
               "r"(counts)
               : "memory");
}

// COUNT threads of a block, of one of its teams.
template <int COUNT>
INLINE void some_sync(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(COUNT) : "memory");
}

INLINE void barrier_init(u32 at, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
INLINE void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void barrier_expect(u32 at, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
INLINE void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
template <bool WIDE>
INLINE void barrier_pass(u32 at, u32 parity) {
  u32 done = 0;
  u64 start = 0, time;
  while (true) {
    if (WIDE)
      asm volatile(
          "{.reg .pred p;\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n@p fence.acquire.sync_restrict::shared::cluster.cluster;}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
    else
      asm volatile(
          "{.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
    if (done) return;
    // Four seconds, where microseconds are usual: an error is better than a wait without end.
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    if (start == 0) start = time;
    if (time - start > 4000000000ull) asm volatile("trap;");
  }
}
INLINE void barrier_wait(u32 at, u32 parity) { barrier_pass<false>(at, parity); }
// For what other blocks of the cluster sent. The fence is for shared memory alone: one for all empties the L1 cache.
INLINE void barrier_wait_cluster(u32 at, u32 parity) { barrier_pass<true>(at, parity); }
// A box of a tensor whose rows are read once: what a map of libraries' tensor_map describes, at token, 64 columns, row.
struct __align__(64) Map { u64 opaque[16]; };
INLINE void copy_box(u32 to, const Map& map, int token, int columns, int row, u32 barrier) {
  u64 once;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(0), "r"(token), "r"(columns), "r"(row), "r"(barrier), "l"(once)
      : "memory");
}
// The same to all BLOCKS blocks of the cluster, at the same place, whose barriers at the same place count the bytes.
template <int BLOCKS>
INLINE void copy_box_to_all(u32 to, const Map& map, int token, int columns, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(0), "r"(token), "r"(columns), "r"(row), "r"(barrier), "h"(static_cast<u16>((1 << BLOCKS) - 1))
      : "memory");
}

// Four 8 x 8 matrices, as the products take their left side, and turned over as they take their right side.
INLINE void matrices(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
INLINE void turned_matrices(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
INLINE void multiply(float (&c)[4], const u32 (&a)[4], const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
