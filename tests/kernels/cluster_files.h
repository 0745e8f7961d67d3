// Raw numbers in files, for programs that run on the emulated cluster.

#include <string>

template <typename T>
static std::vector<T> read(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  fseek(file, 0, SEEK_END);
  std::vector<T> found(ftell(file) / sizeof(T));
  rewind(file);
  if (fread(found.data(), sizeof(T), found.size(), file) != found.size()) machine::fail("a file that cannot be read");
  fclose(file);
  return found;
}

static void write(const std::string& path, const std::vector<float>& numbers) {
  FILE* file = fopen(path.c_str(), "wb");
  fwrite(numbers.data(), 4, numbers.size(), file);
  fclose(file);
}
