// Stands in for libFuzzer where it is missing: calls the target with random and mutated inputs for
// a given time. No coverage guides it, so it finds less; the same seed gives the same inputs.
//
// Flags as libFuzzer's: -max_total_time=SECONDS -seed=N -runs=N -max_len=BYTES
// -artifact_prefix=PATH; a folder is a corpus to mutate, a file is run once. Others are ignored.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) __attribute__((weak));
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Input = std::vector<std::uint8_t>;

struct Arguments {
  double max_total_time = 10;
  std::uint64_t seed = 1;
  std::uint64_t runs = UINT64_MAX;
  std::size_t max_len = 4096;
  std::string artifact_prefix;
  std::vector<Input> corpus;
  std::vector<Input> replay;
};

// The input in progress, kept for the signal handler.
Input g_current;
std::string g_artifact;

void save_current() {
  std::FILE* file = std::fopen(g_artifact.c_str(), "wb");
  if (file == nullptr) return;
  std::fwrite(g_current.data(), 1, g_current.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "the input is in %s\n", g_artifact.c_str());
}

void on_signal(int number) {
  save_current();
  signal(number, SIG_DFL);
  raise(number);
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(stream), {});
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto value = [&](const std::string& name) -> const char* {
      return text.rfind(name, 0) == 0 ? text.c_str() + name.size() : nullptr;
    };
    if (const char* v = value("-max_total_time=")) arguments.max_total_time = std::atof(v);
    if (const char* v = value("-seed=")) arguments.seed = std::strtoull(v, nullptr, 10);
    if (const char* v = value("-runs=")) arguments.runs = std::strtoull(v, nullptr, 10);
    if (const char* v = value("-max_len=")) arguments.max_len = std::strtoull(v, nullptr, 10);
    if (const char* v = value("-artifact_prefix=")) arguments.artifact_prefix = v;
    if (text[0] == '-') continue;
    if (!std::filesystem::is_directory(text)) {
      arguments.replay.push_back(read_file(text));
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(text)) {
      if (entry.is_regular_file()) arguments.corpus.push_back(read_file(entry.path()));
    }
  }
  return arguments;
}

// A new random input, or an old one with a few bytes changed, inserted, repeated or cut.
Input next_input(std::mt19937_64& random, const Arguments& arguments) {
  Input input;
  if (arguments.corpus.empty() || random() % 4 == 0) {
    input.resize(random() % (std::min<std::size_t>(arguments.max_len, 256) + 1));
    for (auto& b : input) b = static_cast<std::uint8_t>(random());
    return input;
  }
  input = arguments.corpus[random() % arguments.corpus.size()];
  for (int change = static_cast<int>(random() % 6); change >= 0 && !input.empty(); --change) {
    const std::size_t at = random() % input.size();
    const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 6) {
      case 0:
        input[at] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        input[at] ^= static_cast<std::uint8_t>(1u << (random() % 8));
        break;
      case 2:
        input[at] = random() % 2 ? 0xff : 0x00;
        break;
      case 3:
        input.insert(here, static_cast<std::uint8_t>(random()));
        break;
      case 4:
        input.erase(here);
        break;
      default:
        input.resize(at);
    }
  }
  if (input.size() > arguments.max_len) input.resize(arguments.max_len);
  return input;
}

void run_one(Input input) {
  g_current = std::move(input);
  // A copy of exactly the input's size: reading past its end is seen.
  const Input exact(g_current.begin(), g_current.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  const Arguments arguments = parse(argc, argv);
  g_artifact = arguments.artifact_prefix + "crash-seed" + std::to_string(arguments.seed);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save_current);
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, on_signal);

  for (const Input& input : arguments.replay) run_one(input);
  if (!arguments.replay.empty()) return 0;

  for (const Input& input : arguments.corpus) run_one(input);
  std::mt19937_64 random(arguments.seed);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t runs = 0;
  for (; runs < arguments.runs; ++runs) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > arguments.max_total_time) break;
    run_one(next_input(random, arguments));
  }
  std::fprintf(stderr, "random driver: %llu runs, nothing found\n",
               static_cast<unsigned long long>(runs));
  return 0;
}
