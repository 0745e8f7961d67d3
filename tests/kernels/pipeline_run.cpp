// Runs Slim attention's pipelined kernel: FOLDER PAST SEQUENCES PER SPLITS TOKENS UNIT IN OUT SEED.
// FOLDER holds q, state, cos, sin and first as raw numbers; part, most and total are written there.

#include "cluster_machine.h"
#include KERNEL
#include "cluster_files.h"

int main(int, char** given) {
  const std::string folder = std::string(given[1]) + "/";
  const int past = atoi(given[2]), sequences = atoi(given[3]), per = atoi(given[4]), splits = atoi(given[5]);
  const i64 tokens = atoi(given[6]), width = HEADS * DIM, lines = sequences * splits * LINES;
  const int all = (past + TILE - 1) / TILE * sequences, clusters = (all + per - 1) / per;
  srand(atoi(given[10]));
  const auto q = read<u16>(folder + "q"), state = read<u16>(folder + "state");
  const auto cosines = read<float>(folder + "cos"), sines = read<float>(folder + "sin");
  const auto first = read<int>(folder + "first");
  std::vector<float> part(lines * WIDTH, NAN), most(lines, NAN), total(lines, NAN);
  const Map map = {state.data(), tokens * width, width, past};
  machine::kernel = [&]() {
    slim_pipeline(map, q.data(), cosines.data(), sines.data(), first.data(), part.data(), most.data(), total.data(), 0,
                  atof(given[7]), atof(given[8]), atof(given[9]), 0, past, all, per, splits);
  };
  gridDim = {clusters * CLUSTER, 1};
  for (int cluster = 0; cluster < clusters; cluster++) machine::run(CLUSTER, cluster * CLUSTER);
  write(folder + "part", part);
  write(folder + "most", most);
  write(folder + "total", total);
}
