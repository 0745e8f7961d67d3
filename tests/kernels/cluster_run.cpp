// Runs Slim attention's cluster kernel: FOLDER PAST SEQUENCES PER SPLITS TOKENS ANGLES UNIT IN OUT SEED.
// FOLDER holds q, state, cos, sin and first as raw numbers; part, most and total are written there.

#include "cluster_machine.h"
#include KERNEL
#include "cluster_files.h"

int main(int, char** given) {
  const std::string folder = std::string(given[1]) + "/";
  const int past = atoi(given[2]), sequences = atoi(given[3]), per = atoi(given[4]), splits = atoi(given[5]);
  const i64 tokens = atoi(given[6]), width = HEADS * DIM, lines = sequences * splits * LINES;
  const int all = (past + TILE - 1) / TILE * sequences, clusters = (all + per - 1) / per;
  const int rows_of_angles = atoi(given[7]);
  srand(atoi(given[11]));
  const auto q = read<u16>(folder + "q"), state = read<u16>(folder + "state");
  const auto cosines = read<float>(folder + "cos"), sines = read<float>(folder + "sin");
  const auto first = read<int>(folder + "first");
  std::vector<float> part(lines * WIDTH, NAN), most(lines, NAN), total(lines, NAN);
  const Map states = {state.data(), tokens * width, width, past, BOX, COLS / 64};
  auto angles = [&](const std::vector<float>& x) {
    return Map{reinterpret_cast<const u16*>(x.data()), tokens * DIM, DIM, past, BOX, 1};
  };
  machine::kernel = [&]() {
    slim_decode(states, angles(cosines), angles(sines), q.data(), first.data(), part.data(), most.data(), total.data(),
                atof(given[8]), atof(given[9]), atof(given[10]), 0, past, all, per, splits, rows_of_angles);
  };
  gridDim = {clusters * CLUSTER, 1};
  for (int cluster = 0; cluster < clusters; cluster++) machine::run(CLUSTER, cluster * CLUSTER);
  write(folder + "part", part);
  write(folder + "most", most);
  write(folder + "total", total);
}
