// Runs Slim attention's cluster kernel on one sequence: FOLDER PAST PER TOKENS FIRST UNIT IN OUT SEED.
// FOLDER holds q, state, cos and sin as raw numbers; part, most and total are written there.

#include "cluster_machine.h"
#include KERNEL
#include "cluster_files.h"

int main(int, char** given) {
  const std::string folder = std::string(given[1]) + "/";
  const int past = atoi(given[2]), per = atoi(given[3]), tokens = atoi(given[4]), splits = (past + per - 1) / per;
  const int first[1] = {atoi(given[5])};
  srand(atoi(given[9]));
  const auto q = read<u16>(folder + "q"), read_state = read<u16>(folder + "state");
  const auto cosines = read<float>(folder + "cos"), sines = read<float>(folder + "sin");
  std::vector<u16> held(read_state.size() + 8);
  u16* state = held.data();
  while (reinterpret_cast<u64>(state) % 16) state++;
  std::copy(read_state.begin(), read_state.end(), state);
  std::vector<float> part(splits * LINES * WIDTH, NAN), most(splits * LINES, NAN), total(splits * LINES, NAN);
  const i64 width = HEADS * DIM;
  machine::kernel = [&]() {
    slim_decode(q.data(), state, cosines.data(), sines.data(), first, part.data(), most.data(), total.data(),
                tokens * width, width, 0, atof(given[6]), atof(given[7]), atof(given[8]), 1.0f, past, per);
  };
  gridDim = {splits * CLUSTER, 1};
  for (int split = 0; split < splits; split++) machine::run(CLUSTER, split * CLUSTER);
  write(folder + "part", part);
  write(folder + "most", most);
  write(folder + "total", total);
}
