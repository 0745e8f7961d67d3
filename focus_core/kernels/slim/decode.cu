// Slim attention's decode step: states read once from memory, by clusters of blocks on Hopper, several tiles in flight.
//
// A cluster takes an even share of all sequences' tiles. Each of its blocks owns COLS columns of the states, which are
// OWN heads. One warp copies tiles; SCORERS score the block's heads as soon as a tile is there and send their weights
// to all blocks of the cluster; WEIGHTERS weight the block's columns by the weights of all heads when they have come.
// Nobody waits for a whole block: each tile's weights count their bytes on a barrier of their own. Scorers are TEAMS
// teams, each of which scores all of a tile's tokens for MINE heads.
//
// No barrier says that weights may be written over. A block scores tile t when its own tile t - STAGES is weighted;
// for that, every block has sent weights of t - STAGES, so it had weighted t - 2 * STAGES. There are as many slots.
//
// Where keys are rotated, all heads of all blocks need a tile's angles. Each block copies a part of them and every
// block gets it; of every block's angles of t - STAGES no barrier need say that they were read, for the same reason.

constexpr int COLS = 512, BOX = 8, GROUPS = TILE / 8, SCORERS = GROUPS * TEAMS, WEIGHTERS = COLS / 64;
constexpr int THREADS = (SCORERS + WEIGHTERS + 1) * 32, SLOTS = 2 * STAGES, SIZE = 2;
constexpr float SLACK = 8.0f, NEVER = -1e30f;
constexpr int OWN = COLS / DIM, MINE = OWN / TEAMS, EACH = 32 / MINE, LINES = HEADS > 16 ? 32 : 16, TALL = LINES / 16;
constexpr int HALF = DIM / 2, STAGE = TILE * COLS * SIZE, LINE = TILE * SIZE + 16;
constexpr int SINES = TILE * HALF * 4, ANGLES = TURNED ? 2 * SINES : 0;
constexpr int A_AT = STAGES * STAGE, P_AT = A_AT + STAGES * ANGLES, F_AT = P_AT + SLOTS * LINES * LINE;
constexpr int T_AT = F_AT + SLOTS * LINES * 4, L_AT = T_AT + 2 * OWN * GROUPS * 4, FULL_AT = L_AT + OWN * GROUPS * 4;
constexpr int EMPTY_AT = FULL_AT + STAGES * 8, SENT_AT = EMPTY_AT + STAGES * 8;
constexpr u32 SENT = HEADS * (TILE * SIZE + 4);

// A copy of states brings BOX tokens of all columns, 64 columns after the other; one of angles BOX tokens of 32 angles'
// cosines or sines. Their rows of 128 bytes are swizzled.
constexpr int BLOCK = BOX * 128, PIECES = SINES / BLOCK;
INLINE u32 place(int token) { return token / BOX * BOX * COLS * SIZE + token % BOX * 128; }
// Of eight tokens the even ones stand first, so that the angles of four lie in different banks.
INLINE int nth(int i) { return i < 4 ? 2 * i : 2 * i - 7; }

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) slim_decode(
    const __grid_constant__ Map states, const __grid_constant__ Map cosines, const __grid_constant__ Map sines,
    const u16* q, const int* firsts, float* part, float* most, float* total, float unit, float cap_in, float cap_out,
    u32 flip, int past, int all, int per, int splits, int rows_of_angles) {
  // The swizzle takes whole kilobytes.
  const u32 memory = (shared_base() + 1023) / 1024 * 1024;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  const int each = (past + TILE - 1) / TILE, begin = cluster * per, stop = begin + per < all ? begin + per : all;
  const int tiles = stop - begin;
  // Each warp counts its own sequences and tiles.
  int b = begin / each, t = begin % each;
  auto next = [&]() {
    if (++t == each) t = 0, b++;
  };
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(memory + FULL_AT + s * 8, 1);
      barrier_init(memory + EMPTY_AT + s * 8, WEIGHTERS);
    }
    for (int s = 0; s < SLOTS; s++) barrier_init(memory + SENT_AT + s * 8, 1);
    barriers_ready();
    for (int s = 0; s < SLOTS; s++) barrier_expect(memory + SENT_AT + s * 8, SENT);
  }
  // Lines beyond the heads keep weights of 0, and are not scaled.
  for (int at = P_AT + thread * 4; at < F_AT; at += THREADS * 4) store(memory + at, 0u);
  for (int at = F_AT + thread * 4; at < T_AT; at += THREADS * 4) store(memory + at, 1.0f);
  warp_sync();
  cluster_arrive();
  cluster_wait();

  if (warp == WEIGHTERS + SCORERS) {
    if (lane == 0) {
      for (int i = 0; i < tiles; i++, next()) {
        const int s = i % STAGES;
        if (i >= STAGES) barrier_wait(memory + EMPTY_AT + s * 8, (i / STAGES - 1) & 1);
        const u32 full = memory + FULL_AT + s * 8;
        barrier_expect(full, STAGE + ANGLES);
        for (int r = 0; r < TILE; r += BOX)
          copy_box(memory + s * STAGE + place(r), states, t * TILE + r, rank * (COLS / 64), b, full);
        const int row = rows_of_angles > 1 ? b : 0;
        for (int n = rank; n < ANGLES / BLOCK; n += CLUSTER)
          copy_box_to_all<CLUSTER>(memory + A_AT + s * ANGLES + n * BLOCK, n < PIECES ? cosines : sines,
                                   t * TILE + n % GROUPS * BOX, n % PIECES / GROUPS, row, full);
      }
    }
    warp_sync();
  } else if (warp >= WEIGHTERS) {
    // A warp scores eight tokens: products of all heads' queries and one head's keys, of which its line counts.
    const int mine = (warp - WEIGHTERS) % GROUPS, team = (warp - WEIGHTERS) / GROUPS;
    const int own = team * MINE + lane / 4 % MINE, two = lane % 4 * 2, key = nth(lane % 8), turn = nth(lane / 4);
    const u32 rows = memory + team * (MINE * DIM / 64) * BLOCK + place(mine * 8 + key) + ((lane / 8) ^ key) * 16;
    const u32 turns = memory + A_AT + (mine * 8 + turn) * 128 + ((two / 4) ^ turn) * 16 + two % 4 * 4;
    const u32 tops = memory + T_AT + own * GROUPS * 4, line = rank * OWN + own;
    u32 query[DIM / 16][4];
    float m = NEVER, l = 0.0f;
    int first = 0;
    for (int i = 0; i < tiles; i++, next()) {
      if (i == 0 || t == 0) {
        const u16* from = q + (i64(b) * HEADS + line) * DIM + two;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
          query[k][0] = load_global(from + k * 16) ^ flip, query[k][2] = load_global(from + k * 16 + 8) ^ flip;
          query[k][1] = query[k][3] = 0;
        }
        m = NEVER, l = 0.0f;
        first = PADDED ? firsts[b] : 0;
      }
      barrier_wait(memory + FULL_AT + i % STAGES * 8, (i / STAGES) & 1);
      const u32 keys = rows + i % STAGES * STAGE, angles = turns + i % STAGES * ANGLES;
      float sums[MINE][4];
#pragma unroll
      for (int h = 0; h < MINE; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[h][e] = 0.0f;
#pragma unroll
      for (int d = 0; d < (TURNED ? HALF : DIM); d += 32) {
        float c[4][2], s[4][2];
#pragma unroll
        for (int n = 0; n < (TURNED ? 4 : 0); n++) {
          const u32 from = (angles ^ (n * 32)) + d / 32 * TILE * 128;
          load(from, c[n]);
          load(from + SINES, s[n]);
        }
#pragma unroll
        for (int h = 0; h < MINE; h++) {
          const int here = h * DIM + d;
          u32 x[4];
          matrices(x, (keys ^ (here % 64 * 2)) + here / 64 * BLOCK);
          if (TURNED) {
            const int there = here + HALF;
            u32 y[4];
            matrices(y, (keys ^ (there % 64 * 2)) + there / 64 * BLOCK);
#pragma unroll
            for (int n = 0; n < 4; n++) {
              const float x0 = low(x[n]), x1 = high(x[n]), y0 = low(y[n]), y1 = high(y[n]);
              x[n] = pair(x0 * c[n][0] - y0 * s[n][0], x1 * c[n][1] - y1 * s[n][1]);
              y[n] = pair(y0 * c[n][0] + x0 * s[n][0], y1 * c[n][1] + x1 * s[n][1]);
            }
            multiply(sums[h], query[(d + HALF) / 16], y);
            multiply(sums[h], query[(d + HALF) / 16 + 1], y + 2);
          }
          multiply(sums[h], query[d / 16], x);
          multiply(sums[h], query[d / 16 + 1], x + 2);
        }
      }

#pragma unroll
      for (int bit = MINE / 2; bit > 0; bit /= 2)
#pragma unroll
        for (int h = 0; h < bit; h++)
#pragma unroll
          for (int e = 0; e < 2; e++) sums[h][e] = own & bit ? sums[h + bit][e] : sums[h][e];
      float x[2] = {sums[0][0], sums[0][1]};
      for (int e = 0; e < 2; e++) {
        const int j = t * TILE + mine * 8 + nth(two + e);
        if (CAPPED) x[e] = cap_out * (1.0f - 2.0f / (power(x[e] * cap_in) + 1.0f));
        x[e] = j < past && j >= first ? x[e] * unit : -INFINITE;
      }
      float top = x[0] > x[1] ? x[0] : x[1];
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2) {
        const float y = other(top, mask);
        top = top > y ? top : y;
      }
      // A head's reference is one for all blocks, so it comes from the whole tile.
      const u32 side = i % 2 * OWN * GROUPS * 4;
      if (two == 0 && lane < MINE * 4) store(tops + side + mine * 4, top);
      some_sync<GROUPS * 32>(team);
#pragma unroll
      for (int n = 0; n < GROUPS; n += 2) {
        float y[2];
        load(tops + side + n * 4, y);
        top = top > y[0] ? top : y[0];
        top = top > y[1] ? top : y[1];
      }
      const float fresh = top > m + SLACK ? top : m;
      const float shrink = power(m - fresh), p0 = power(x[0] - fresh), p1 = power(x[1] - fresh);
      m = fresh;
      l = l * shrink + (p0 + p1);

      const u32 both = pair(p0, p1), slot = i % SLOTS, sent = memory + SENT_AT + slot * 8;
      u32 eight[4];
#pragma unroll
      for (int n = 0; n < 4; n++) eight[n] = lane_of(both, lane / 4 * 4 + n);
#pragma unroll
      for (int n = 0; n < CLUSTER; n += EACH) {
        const int to = n + lane / 4 / MINE * 4 + lane % 4;
        if (to >= CLUSTER) continue;
        send(memory + P_AT + (slot * LINES + line) * LINE + mine * 16, to, eight, sent);
        if (mine == 0) send(memory + F_AT + (slot * LINES + line) * 4, to, bits(shrink), sent);
      }

      if (t == each - 1 || i == tiles - 1) {
        for (int mask = 1; mask < 4; mask *= 2) l += other(l, mask);
        if (two == 0 && lane < MINE * 4) store(memory + L_AT + (own * GROUPS + mine) * 4, l);
        some_sync<GROUPS * 32>(team);
        if (mine == 0 && two == 0 && lane < MINE * 4) {
          float whole = 0.0f;
          for (int n = 0; n < GROUPS; n++) whole += number(load(memory + L_AT + (own * GROUPS + n) * 4));
          const int here = cluster - b * each / per;
          const i64 to = (i64(b) * splits + here) * LINES + line;
          most[to] = m;
          total[to] = whole;
          // Where other sequences have more parts, those that this one lacks are empty.
          if (t == each - 1)
            for (int n = 1; n < splits - here; n++) total[to + i64(n) * LINES] = 0.0f;
        }
      }
    }
  } else {
    float acc[TALL][8][4];
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[i][n][e] = 0.0f;
    const int key = nth(lane % 8);
    const u32 rows = memory + place(lane % 16 / 8 * 8 + key) + warp * BLOCK + ((lane / 16) ^ key) * 16;
    for (int i = 0; i < tiles; i++, next()) {
      const u32 slot = i % SLOTS, sent = memory + SENT_AT + slot * 8;
      barrier_wait(memory + FULL_AT + i % STAGES * 8, (i / STAGES) & 1);
      barrier_wait_cluster(sent, (i / SLOTS) & 1);
      if (thread == 0) barrier_expect(sent, SENT);
      float f[TALL][2];
      bool scaled = false;
#pragma unroll
      for (int x = 0; x < TALL; x++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          f[x][e] = number(load(memory + F_AT + (slot * LINES + x * 16 + e * 8 + lane / 4) * 4));
          scaled |= f[x][e] != 1.0f;
        }
      if (any(scaled)) {
#pragma unroll
        for (int x = 0; x < TALL; x++)
#pragma unroll
          for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[x][n][e] *= f[x][e / 2];
      }
      const u32 weights = memory + P_AT + (slot * LINES + lane % 16) * LINE + lane / 16 * 16;
      const u32 values = rows + i % STAGES * STAGE;
#pragma unroll
      for (int k = 0; k < TILE; k += 16) {
        u32 left[TALL][4], right[4][4];
#pragma unroll
        for (int x = 0; x < TALL; x++) matrices(left[x], weights + x * 16 * LINE + k * SIZE);
#pragma unroll
        for (int n = 0; n < 4; n++) turned_matrices(right[n], (values ^ (n * 32)) + place(k));
#pragma unroll
        for (int x = 0; x < TALL; x++)
#pragma unroll
          for (int n = 0; n < 8; n++) multiply(acc[x][n], left[x], right[n / 2] + n % 2 * 2);
      }
      warp_sync();
      if (lane == 0) barrier_arrive(memory + EMPTY_AT + i % STAGES * 8);
      if (t == each - 1 || i == tiles - 1) {
        const i64 line = (i64(b) * splits + (cluster - b * each / per)) * LINES;
#pragma unroll
        for (int x = 0; x < TALL; x++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int h = x * 16 + e * 8 + lane / 4;
#pragma unroll
            for (int n = 0; n < 8; n++) {
              float* to = part + (line + h) * WIDTH + rank * COLS + warp * 64 + n * 8 + lane % 4 * 2;
              if (h < HEADS) store_global(to, acc[x][n] + 2 * e);
              acc[x][n][2 * e] = acc[x][n][2 * e + 1] = 0.0f;
            }
          }
      }
    }
  }
  // A block stays while others may still send to it.
  cluster_arrive();
  cluster_wait();
}
