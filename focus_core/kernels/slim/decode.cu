// Slim attention's decode step: states read once from memory, by clusters of blocks on Hopper and newer.
//
// A cluster takes one sequence's tokens, or a share of them. Each of its blocks owns COLS columns of the states, which
// are OWN heads. Of every tile of tokens a block scores its own heads, gives their weights to all blocks of the
// cluster through distributed shared memory, and one tile later weights its columns by the weights of all heads.
// A head's reference for its exponents moves only when a score is above it by more than SLACK, so sums are seldom
// scaled anew.

constexpr int COLS = 512, WARPS = 16, THREADS = (WARPS + 1) * 32, SLOTS = 3, SIZE = 2;
constexpr float SLACK = 8.0f, NEVER = -1e30f;
constexpr int OWN = COLS / DIM, LINES = HEADS > 16 ? 32 : 16, TALL = LINES / 16;
constexpr int LANES = DIM / 4, GROUPS = 32 / LANES, HALF = DIM / 2;
constexpr int EACH = TILE / WARPS, PARTS = WARPS / OWN;
// Rows are longer by 16 bytes, so that eight of them start in different banks.
constexpr int ROW = COLS * SIZE + 16, STAGE = TILE * ROW, LINE = TILE * SIZE + 16;
constexpr int P_AT = STAGES * STAGE, F_AT = P_AT + SLOTS * LINES * LINE, S_AT = F_AT + SLOTS * LINES * 4;
constexpr int FULL_AT = S_AT + OWN * TILE * 4, EMPTY_AT = FULL_AT + STAGES * 8;

// Lanes that hold the same sum: of LANES, as many as there are more than a warp's values.
constexpr int REST = LANES > EACH * 4 ? LANES / (EACH * 4) - 1 : 0;

// Sums over LANES lanes: half of the values go to another lane each time while there are several; `which` is kept.
template <int N, int MASK>
INLINE float summed(float* v, int lane, int& which) {
  if constexpr (MASK == 0) {
    return v[0];
  } else if constexpr (N > 1) {
    const bool up = lane & MASK;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float kept = up ? v[i + N / 2] : v[i], sent = up ? v[i] : v[i + N / 2];
      v[i] = kept + other(sent, MASK);
    }
    which += up ? N / 2 : 0;
    return summed<N / 2, MASK / 2>(v, lane, which);
  } else {
    v[0] += other(v[0], MASK);
    return summed<1, MASK / 2>(v, lane, which);
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) slim_decode(
    const u16* q, const u16* state, const float* cosines, const float* sines, const int* firsts, float* part,
    float* most, float* total, i64 row_step, i64 token_step, i64 angle_step, float unit, float cap_in, float cap_out,
    float sign, int past, int per) {
  const u32 memory = shared_base();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rank = blockIdx.x % CLUSTER, split = blockIdx.x / CLUSTER, splits = gridDim.x / CLUSTER, b = blockIdx.y;
  const int begin = split * per, stop = begin + per < past ? begin + per : past;
  const int tiles = stop > begin ? (stop - begin + TILE - 1) / TILE : 0;
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(memory + FULL_AT + s * 8, 1);
      barrier_init(memory + EMPTY_AT + s * 8, WARPS);
    }
    barriers_ready();
  }
  // Lines beyond the heads stay 0.
  for (int at = P_AT + thread * 4; at < S_AT; at += THREADS * 4) store(memory + at, 0u);
  warp_sync();
  cluster_arrive();
  cluster_wait();

  if (warp == WARPS) {
    const u16* from = state + b * row_step + rank * COLS;
    for (int t = 1 - STAGES; t < tiles; t++) {
      // All threads of a cluster meet once a tile, this warp too.
      if (t >= 0) cluster_arrive();
      const int next = t + STAGES - 1, s = next % STAGES;
      if (next < tiles) {
        if (next >= STAGES) barrier_wait(memory + EMPTY_AT + s * 8, (next / STAGES - 1) & 1);
        if (lane == 0) barrier_expect(memory + FULL_AT + s * 8, TILE * COLS * SIZE);
        warp_sync();
        for (int r = lane; r < TILE; r += 32) {
          // Behind the last token its row stands again, with weight 0.
          const int j = begin + next * TILE + r;
          copy(memory + s * STAGE + r * ROW, from + (j < stop ? j : stop - 1) * token_step, COLS * SIZE,
               memory + FULL_AT + s * 8);
        }
        warp_sync();
      }
      if (t >= 0) cluster_wait();
    }
    return;
  }

  // A lane scores two pairs of dimensions of four heads. Where two heads' lanes would meet in a bank, those of the
  // second read the halves the other way round, which changes the sign of the sines.
  const int group = lane / LANES, own = lane % LANES, turn = group & 1;
  float q1[4][2], q2[4][2];
  for (int i = 0; i < 4; i++) {
    const u16* from = q + (i64(b) * HEADS + rank * OWN + i * GROUPS + group) * DIM + 2 * own;
    const u32 one = load_global(from + (turn ? HALF : 0)), two = load_global(from + (turn ? 0 : HALF));
    q1[i][0] = low(one) * sign, q1[i][1] = high(one) * sign;
    q2[i][0] = low(two) * sign, q2[i][1] = high(two) * sign;
  }
  const u32 at_one = memory + group * DIM * SIZE + own * 4 + (turn ? DIM : 0);
  const u32 at_two = memory + group * DIM * SIZE + own * 4 + (turn ? 0 : DIM);
  float c[EACH][2], s[EACH][2];
  const float* cos_from = cosines + b * angle_step + 2 * own;
  const float* sin_from = sines + b * angle_step + 2 * own;
  auto angles = [&](int t) {
    for (int n = 0; n < EACH; n++) {
      const int j = begin + t * TILE + warp * EACH + n;
      const i64 at = i64(j < stop ? j : stop - 1) * HALF;
      load_global(cos_from + at, c[n]);
      load_global(sin_from + at, s[n]);
      if (turn) s[n][0] = -s[n][0], s[n][1] = -s[n][1];
    }
  };
  if (TURNED && tiles > 0) angles(0);
  const int first = PADDED ? firsts[b] : 0;
  const int head = warp % OWN, share = warp / OWN;
  float m = NEVER, l = 0.0f;
  float acc[TALL][4][4];
  for (int i = 0; i < TALL; i++)
    for (int n = 0; n < 4; n++)
      for (int e = 0; e < 4; e++) acc[i][n][e] = 0.0f;

  for (int t = 0; t <= tiles; t++) {
    if (t < tiles) {
      const u32 stage = (t % STAGES) * STAGE;
      barrier_wait(memory + FULL_AT + (t % STAGES) * 8, (t / STAGES) & 1);
      float v[EACH * 4];
#pragma unroll
      for (int n = 0; n < EACH; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const u32 at = stage + (warp * EACH + n) * ROW + i * GROUPS * DIM * SIZE;
          const u32 one = load(at_one + at), two = load(at_two + at);
          if (TURNED) {
            const float u0 = q1[i][0] * low(one) + q2[i][0] * low(two), w0 = q2[i][0] * low(one) - q1[i][0] * low(two);
            const float u1 = q1[i][1] * high(one) + q2[i][1] * high(two);
            const float w1 = q2[i][1] * high(one) - q1[i][1] * high(two);
            v[n * 4 + i] = c[n][0] * u0 + s[n][0] * w0 + c[n][1] * u1 + s[n][1] * w1;
          } else {
            v[n * 4 + i] = q1[i][0] * low(one) + q1[i][1] * high(one) + q2[i][0] * low(two) + q2[i][1] * high(two);
          }
        }
      }
      if (TURNED && t + 1 < tiles) angles(t + 1);
      int which = 0;
      const float score = summed<EACH * 4, LANES / 2>(v, lane, which);
      if ((lane & REST) == 0)
        store(memory + S_AT + ((which % 4 * GROUPS + group) * TILE + warp * EACH + which / 4) * 4, score);
      block_sync();

      float x[2] = {-INFINITE, -INFINITE};
      if (2 * lane < TILE) {
        load(memory + S_AT + (head * TILE + 2 * lane) * 4, x);
        for (int e = 0; e < 2; e++) {
          const int j = begin + t * TILE + 2 * lane + e;
          if (CAPPED) x[e] = cap_out * (1.0f - 2.0f / (power(x[e] * cap_in) + 1.0f));
          x[e] = j < stop && j >= first ? x[e] * unit : -INFINITE;
        }
      }
      const float top = highest(x[0] > x[1] ? x[0] : x[1]);
      const float fresh = top > m + SLACK ? top : m;
      const float shrink = power(m - fresh), p0 = power(x[0] - fresh), p1 = power(x[1] - fresh);
      m = fresh;
      l = l * shrink + (p0 + p1);
      const u32 line = t % SLOTS * LINES + rank * OWN + head, both = pair(p0, p1);
      for (int to = share; to < CLUSTER; to += PARTS) {
        if (2 * lane < TILE) store_at(memory + P_AT + line * LINE + lane * 4, to, both);
        if (lane == 0) store_at(memory + F_AT + line * 4, to, bits(shrink));
      }
      warp_sync();
      cluster_arrive();
    }
    if (t > 0) {
      const u32 slot = (t - 1) % SLOTS, stage = (t - 1) % STAGES;
      float f[TALL][2];
      bool scaled = false;
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          f[i][e] = number(load(memory + F_AT + (slot * LINES + i * 16 + e * 8 + lane / 4) * 4));
          scaled |= f[i][e] != 1.0f;
        }
      if (any(scaled)) {
#pragma unroll
        for (int i = 0; i < TALL; i++)
#pragma unroll
          for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][n][e] *= f[i][e / 2];
      }
      const u32 weights = memory + P_AT + (slot * LINES + lane % 16) * LINE + lane / 16 * 16;
      const u32 rows = memory + stage * STAGE + lane % 16 * ROW + (warp * 32 + lane / 16 * 8) * SIZE;
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) {
        u32 left[TALL][4], right[2][4];
#pragma unroll
        for (int i = 0; i < TALL; i++) matrices(left[i], weights + i * 16 * LINE + k * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) turned_matrices(right[n], rows + k * 16 * ROW + n * 32);
#pragma unroll
        for (int i = 0; i < TALL; i++)
#pragma unroll
          for (int n = 0; n < 4; n++) multiply(acc[i][n], left[i], right[n / 2] + n % 2 * 2);
      }
      warp_sync();
      if (lane == 0) barrier_arrive(memory + EMPTY_AT + stage * 8);
    }
    if (t < tiles) cluster_wait();
  }

  const i64 line = (i64(b) * splits + split) * LINES;
#pragma unroll
  for (int i = 0; i < TALL; i++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int h = i * 16 + e * 8 + lane / 4;
      if (h < HEADS)
#pragma unroll
        for (int n = 0; n < 4; n++)
          store_global(part + (line + h) * WIDTH + rank * COLS + warp * 32 + n * 8 + lane % 4 * 2, acc[i][n] + 2 * e);
    }
  l = sum(l);
  if (share == 0 && lane == 0) {
    most[line + rank * OWN + head] = m;
    total[line + rank * OWN + head] = l;
  }
}
