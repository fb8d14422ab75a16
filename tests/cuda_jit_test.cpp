#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "cuda_compiler.h"
#include "runtime/cuda/driver.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/compile.h"
#include "runtime/kernel_store/config.h"
#include "runtime/kernel_store/sha256.h"
#include "runtime/kernel_store/sources.h"
#include "runtime/library/library.h"

namespace flashlab::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256().update("abc").hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().update(std::string(1000, 'a')).hex(),
            "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
  EXPECT_EQ(Sha256().update("ab").update("c").hex(), Sha256().update("abc").hex());
  EXPECT_NE(Sha256().update_field("ab").update_field("c").hex(),
            Sha256().update_field("a").update_field("bc").hex());
}

class Cache : public ::testing::Test {
 protected:
  Cache() {
    std::string name = (fs::temp_directory_path() / "flashlab-cache-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~Cache() override { fs::remove_all(root_); }

  std::string folder() const { return (root_ / "deep" / "cache").string(); }
  fs::path only_file() const { return fs::directory_iterator(folder())->path(); }

  const KernelKey key_{"digest", "flash_fwd", "struct Config {};", "-v", "sm_90a"};
  const CachedKernel kernel_{std::string("\0cubin\xff\n 7", 10), "ptxas info: 40 registers",
                             "NVRTC 13.0"};
  fs::path root_;
};

TEST_F(Cache, GivesBackWhatWasStored) {
  const KernelCache cache(folder());
  EXPECT_FALSE(cache.find(key_)->has_value());
  EXPECT_TRUE(cache.list()->empty());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  const auto found = cache.find(key_);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((**found).image, kernel_.image);
  EXPECT_EQ((**found).log, kernel_.log);
  EXPECT_EQ((**found).compiler, kernel_.compiler);
  ASSERT_EQ(cache.list()->size(), 1u);
  EXPECT_THAT(cache.list()->front().name, HasSubstr("flash_fwd-sm_90a-"));
  std::ofstream(folder() + "/someone-elses.txt") << "stays";
  EXPECT_GT(*cache.clear(), 0);
  EXPECT_FALSE(cache.find(key_)->has_value());
  EXPECT_TRUE(fs::exists(folder() + "/someone-elses.txt"));
}

TEST_F(Cache, EveryPartOfTheKeyCounts) {
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  for (std::string KernelKey::*part : {&KernelKey::sources, &KernelKey::name, &KernelKey::config,
                                       &KernelKey::options, &KernelKey::architecture}) {
    KernelKey other = key_;
    other.*part += "x";
    EXPECT_FALSE(cache.find(other)->has_value());
  }
}

TEST_F(Cache, DamageIsAMissAndIsRemoved) {
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  std::ifstream in(only_file(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> damaged{"", "flashlab-kernel 1\n", whole + "x",
                                   "flashlab-kernel 2" + whole};
  for (std::size_t cut = 0; cut < whole.size(); cut += 7) damaged.push_back(whole.substr(0, cut));
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    damaged.push_back(whole);
    damaged.back()[i] = static_cast<char>(damaged.back()[i] ^ 1);
  }
  for (const std::string& bytes : damaged) {
    ASSERT_TRUE(cache.store(key_, kernel_).ok());
    const fs::path file = only_file();
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    const auto found = cache.find(key_);
    ASSERT_TRUE(found.ok());
    EXPECT_FALSE(found->has_value()) << bytes.size();
    EXPECT_FALSE(fs::exists(file));
  }
}

void make_older(const fs::path& file, std::chrono::minutes by) {
  fs::last_write_time(file, fs::last_write_time(file) - by);
}

// Process ids come again in a container: what a writer of the same number left may not stop a new
// one for ever.
TEST_F(Cache, WhatKilledWritersLeftIsSweptAndStopsNobody) {
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.prepare().ok());
  const std::string path = folder() + "/" + key_.file_stem() + ".kernel";
  std::vector<fs::path> left;
  for (int counter = 0; counter < 8; ++counter) {
    left.push_back(path + "." + std::to_string(getpid()) + "." + std::to_string(counter) + ".tmp");
    std::ofstream(left.back()) << "half a kernel";
  }
  make_older(left.front(), std::chrono::minutes(60));
  std::ofstream(folder() + "/someone-elses.tmp") << "stays";
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  EXPECT_TRUE(cache.find(key_)->has_value());
  EXPECT_FALSE(fs::exists(left.front()));
  EXPECT_TRUE(fs::exists(left.back())) << "its writer may still run";
  EXPECT_EQ(cache.list()->size(), 1u);
  EXPECT_GT(*cache.clear(), 0);
  EXPECT_FALSE(fs::exists(left.back()));
  EXPECT_TRUE(fs::exists(folder() + "/someone-elses.tmp"));
}

TEST_F(Cache, EntriesNotUsedForLongestMakeRoom) {
  const auto key = [&](int i) {
    KernelKey other = key_;
    other.config += std::to_string(i);
    return other;
  };
  const auto file = [&](int i) { return fs::path(folder()) / (key(i).file_stem() + ".kernel"); };
  ASSERT_TRUE(KernelCache(folder()).store(key(0), kernel_).ok());
  const auto entry_bytes = static_cast<std::int64_t>(fs::file_size(file(0)));
  const KernelCache cache(folder(), KernelCache::Access::kReadWrite, 4 * entry_bytes);
  for (int i = 1; i < 4; ++i) ASSERT_TRUE(cache.store(key(i), kernel_).ok());
  EXPECT_EQ(cache.list()->size(), 4u) << "all that fit";
  for (int i = 0; i < 4; ++i) make_older(file(i), std::chrono::minutes(600 - 100 * i));
  EXPECT_TRUE(cache.find(key(0))->has_value()) << "the oldest, but used now";
  ASSERT_TRUE(cache.store(key(4), kernel_).ok());
  EXPECT_FALSE(fs::exists(file(1)));
  for (const int i : {0, 2, 3, 4}) EXPECT_TRUE(fs::exists(file(i))) << i;
  // What is just written stays, however large; without a limit everything does.
  ASSERT_TRUE(
      KernelCache(folder(), KernelCache::Access::kReadWrite, 1).store(key(5), kernel_).ok());
  EXPECT_EQ(cache.list()->size(), 1u);
  EXPECT_TRUE(fs::exists(file(5)));
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(KernelCache(folder()).store(key(i), kernel_).ok());
  EXPECT_EQ(cache.list()->size(), 9u);
}

TEST_F(Cache, TheLimitIsNamedInMebibytes) {
  const auto limit = [](const char* text) {
    setenv("FLASHLAB_CACHE_MAX_MB", text, 1);
    return KernelCache::default_max_bytes();
  };
  unsetenv("FLASHLAB_CACHE_MAX_MB");
  const std::int64_t standard = KernelCache::default_max_bytes();
  EXPECT_EQ(standard, std::int64_t{512} << 20);
  EXPECT_EQ(limit("64"), std::int64_t{64} << 20);
  EXPECT_EQ(limit("0"), 0) << "no limit";
  for (const char* bad : {"", "many", "-1", "64 MB", "99999999999999999999"}) {
    EXPECT_EQ(limit(bad), standard) << bad;
  }
  unsetenv("FLASHLAB_CACHE_MAX_MB");
}

TEST_F(Cache, ASymbolicLinkIsNotFollowed) {
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  const fs::path file = only_file(), elsewhere = root_ / "elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  EXPECT_FALSE(cache.find(key_)->has_value());
}

TEST_F(Cache, AFolderOthersMayWriteToIsRefused) {
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  ASSERT_EQ(chmod(folder().c_str(), 0777), 0);
  const auto found = cache.find(key_);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kIoError);
  EXPECT_THAT(found.status().message(), HasSubstr("chmod go-w"));
  EXPECT_FALSE(cache.store(key_, kernel_).ok());
}

TEST_F(Cache, AFolderOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  const KernelCache cache(folder());
  ASSERT_TRUE(cache.store(key_, kernel_).ok());
  ASSERT_EQ(chown(folder().c_str(), 65534, 65534), 0);
  EXPECT_THAT(cache.find(key_).status().message(), HasSubstr("user 65534"));
  const KernelCache precompiled(folder(), KernelCache::Access::kReadOnly);
  EXPECT_TRUE(precompiled.find(key_)->has_value()) << "a read-only folder may be root's";
}

TEST_F(Cache, FoldersThatCannotBeUsedSaySo) {
  std::ofstream(root_ / "file") << "x";
  EXPECT_FALSE(KernelCache((root_ / "file").string()).store(key_, kernel_).ok());
  EXPECT_FALSE(KernelCache((root_ / "file" / "below").string()).store(key_, kernel_).ok());
  EXPECT_FALSE(KernelCache("").store(key_, kernel_).ok());
  // Nobody may make a folder there, root neither.
  const Status unwritable = KernelCache("/proc/flashlab").store(key_, kernel_);
  EXPECT_EQ(unwritable.code(), StatusCode::kIoError);
  EXPECT_THAT(unwritable.message(), AllOf(HasSubstr("kernel cache /proc/flashlab: got "),
                                          HasSubstr("expected a usable folder"),
                                          HasSubstr("name a writable folder in FLASHLAB_CACHE")));
  EXPECT_FALSE(KernelCache(folder(), KernelCache::Access::kReadOnly).store(key_, kernel_).ok());
}

TEST_F(Cache, WhatIsOnlyReadMustBeThereAndReadable) {
  const KernelCache precompiled(folder(), KernelCache::Access::kReadOnly);
  const std::string remedy = "name a readable folder in FLASHLAB_PRECOMPILED";
  EXPECT_THAT(precompiled.check().message(),
              AllOf(HasSubstr("precompiled kernels in " + folder()), HasSubstr(remedy)));
  EXPECT_THAT(precompiled.find(key_).status().message(), HasSubstr(remedy));
  ASSERT_TRUE(KernelCache(folder()).store(key_, kernel_).ok());
  EXPECT_TRUE(precompiled.check().ok());
  EXPECT_TRUE(precompiled.find(key_)->has_value());
  KernelKey other = key_;
  other.name = "another";
  EXPECT_FALSE(precompiled.find(other)->has_value()) << "a miss is no error";
  if (geteuid() == 0) return;  // root reads everything
  ASSERT_EQ(chmod(only_file().c_str(), 0), 0);
  EXPECT_THAT(precompiled.find(key_).status().message(), HasSubstr("chmod a+r"));
  ASSERT_EQ(chmod(folder().c_str(), 0), 0);
  EXPECT_THAT(precompiled.check().message(), HasSubstr(remedy));
  ASSERT_EQ(chmod(folder().c_str(), 0700), 0);
}

TEST_F(Cache, WritersDoNotDisturbEachOther) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      const KernelCache cache(folder());
      for (int round = 0; round < 50; ++round) {
        EXPECT_TRUE(cache.store(key_, kernel_).ok());
        const auto found = cache.find(key_);
        EXPECT_TRUE(found.ok() && found->has_value());
      }
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(KernelCache(folder()).list()->size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 1);
}

TEST(ConfigPrinter, PrintsNamedConstants) {
  ConfigPrinter config;
  config.integer("kTileQ", 128).integer("kLimit", 1LL << 40).boolean("kCausal", true);
  config.choice("kInput", "Element", "kBf16");
  EXPECT_EQ(config.text(),
            "struct Config {\n"
            "  static constexpr int kTileQ = 128;\n"
            "  static constexpr long long kLimit = 1099511627776LL;\n"
            "  static constexpr bool kCausal = true;\n"
            "  static constexpr Element kInput = Element::kBf16;\n"
            "};\n");
  EXPECT_EQ(config.summary(), "kTileQ 128 · kLimit 1099511627776 · kCausal true · kInput kBf16");
}

TEST(LibraryLoader, NamesEverythingItTried) {
  const auto library =
      Library::open("X", {"libdoes-not-exist.so.1", "/nowhere/libx.so"}, "install it");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(library.status().message(), HasSubstr("libdoes-not-exist.so.1"));
  EXPECT_THAT(library.status().message(), HasSubstr("/nowhere/libx.so"));
  EXPECT_THAT(library.status().message(), HasSubstr("install it"));
}

TEST(DriverLoader, AnswersWithOrWithoutADriver) {
  const auto driver = Driver::get();
  if (driver.ok()) {
    EXPECT_FALSE((*driver)->devices().empty());
    EXPECT_GE((*driver)->version(), 12020);
    EXPECT_THAT((*driver)->devices()[0].architecture(), HasSubstr("sm_"));
  } else {
    EXPECT_THAT(driver.status().message(), HasSubstr("the CPU backend works"));
  }
}

TEST(EmbeddedSources, AreThere) {
  auto sources = DeviceSources::get();
  ASSERT_TRUE(sources.ok()) << sources.status().message();
  EXPECT_EQ((*sources)->digest("").size(), 64u);
  bool types = false;
  for (const SourceFile& file : (*sources)->files()) types |= file.name == "config_types.h";
  EXPECT_TRUE(types);
}

// Editing one file asks only for the kernels that include it, directly or not, to be made anew.
TEST(EmbeddedSources, AKernelIsKeyedByTheFilesThatItIncludes) {
  const auto embedded = DeviceSources::get();
  ASSERT_TRUE(embedded.ok());
  const auto main_of = [](const char* source) {
    return std::string("#include \"config_types.h\"\n#include \"") + source + "\"\n";
  };
  const std::string attention = main_of("sm80/forward/kernel.cu"),
                    naive = main_of("ladder/naive.cu");
  const auto edited = [&](const char* name) {
    std::vector<SourceFile> files = (*embedded)->files();
    const auto at = std::find_if(files.begin(), files.end(),
                                 [&](const SourceFile& file) { return file.name == name; });
    EXPECT_NE(at, files.end()) << name;
    if (at != files.end()) at->text += "// edited\n";
    return DeviceSources(std::move(files));
  };
  const auto changes = [&](const char* edit, const std::string& main) {
    return edited(edit).digest(main) != (*embedded)->digest(main);
  };
  EXPECT_TRUE(changes("sm80/forward/kernel.cu", attention));
  EXPECT_TRUE(changes("tile/softmax.h", attention)) << "included by sm80/forward/warp.h";
  EXPECT_TRUE(changes("config_types.h", naive));
  EXPECT_FALSE(changes("tile/softmax.h", naive));
  EXPECT_FALSE(changes("ladder/naive.cu", attention));
  EXPECT_FALSE(changes("lab/roof.cu", attention));

  // Another file of the same text, or a text that moved to another file, is another closure.
  EXPECT_NE(DeviceSources({{"a.h", "1"}, {"b.h", "1"}}).digest("#include \"a.h\"\n"),
            DeviceSources({{"a.h", "1"}, {"b.h", "1"}}).digest("#include \"b.h\"\n"));
  const DeviceSources circle({{"a.h", "#include \"b.h\"\n"}, {"b.h", "#include \"a.h\"\n"}});
  EXPECT_EQ(circle.closure("#include \"b.h\"\n").size(), 2u);
}

TEST(CompileTarget, IsTheArchitectureOrThePtxOfTheGreatestBelowIt) {
  const std::vector<int> nvrtc_12_8{75, 80, 86, 87, 89, 90, 100, 101, 120};
  EXPECT_EQ(compile_target("sm_90a", nvrtc_12_8), "sm_90a");
  EXPECT_EQ(compile_target("sm_103a", nvrtc_12_8), "compute_101") << "B300 with an older NVRTC";
  EXPECT_EQ(compile_target("sm_121a", nvrtc_12_8), "compute_120");
  EXPECT_EQ(compile_target("sm_88", nvrtc_12_8), "compute_87");
  EXPECT_EQ(compile_target("sm_61", nvrtc_12_8), "sm_61") << "the compiler says that it cannot";
  EXPECT_EQ(compile_target("compute_90", nvrtc_12_8), "compute_90");
}

TEST(ResourceReport, IsReadFromTheLog) {
  const std::string log =
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'first' for 'sm_80'\n"
      "ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_80'\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 0 barriers\n";
  const auto first = resource_use(log, "first");
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->registers, 40);
  EXPECT_EQ(first->stack_bytes, 8);
  EXPECT_EQ(first->spill_store_bytes, 16);
  EXPECT_EQ(first->spill_load_bytes, 24);
  EXPECT_EQ(first->static_shared_bytes, 4096);
  EXPECT_EQ(resource_use(log, "second")->registers, 255);
  EXPECT_EQ(resource_use(log, "second")->static_shared_bytes, 0);
  EXPECT_FALSE(resource_use(log, "third").ok());
}

class Compiler : public ::testing::Test {
 protected:
  void SetUp() override {
    NEED_COMPILER();
    nvrtc_ = *Nvrtc::get();
  }
  const Nvrtc* nvrtc_ = nullptr;
};

TEST_F(Compiler, MakesCubinsAndPtx) {
  CompileRequest request{{"double.cu",
                          "#include \"tile/twice.h\"\n"
                          "extern \"C\" __global__ void twice_all(float* x) {\n"
                          "  x[threadIdx.x] = twice(x[threadIdx.x]);\n}\n"},
                         {{"tile/twice.h", "inline float twice(float x) { return 2 * x; }\n"}},
                         "sm_90a",
                         {}};
  auto compiled = nvrtc_->compile(request);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  EXPECT_EQ(compiled->image.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_THAT(compiled->log, HasSubstr("registers"));
  EXPECT_THAT(compiled->log, HasSubstr("0 bytes spill stores"));
  EXPECT_EQ(compiled->compiler, nvrtc_->version());
  request.architecture = "compute_80";
  compiled = nvrtc_->compile(request);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  EXPECT_THAT(compiled->image, HasSubstr(".target sm_80"));
}

TEST_F(Compiler, ErrorsCarryTheLog) {
  const auto compiled =
      nvrtc_->compile({{"broken.cu", "int f() { return missing; }"}, {}, "sm_80", {}});
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), StatusCode::kDeviceError);
  EXPECT_THAT(compiled.status().message(), HasSubstr("broken.cu(1)"));
  EXPECT_THAT(compiled.status().message(), HasSubstr("missing"));
}

TEST_F(Compiler, ImagesAreCompiledOnceAndThenCached) {
  std::string folder = (fs::temp_directory_path() / "flashlab-images-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(setenv("FLASHLAB_CACHE", folder.c_str(), 1), 0);
  const KernelSpec spec{"config_types.h",
                        "fill",
                        "struct Config { static constexpr int kValue = 7; };\n"
                        "extern \"C\" __global__ void fill(int* x) { *x = Config::kValue; }\n",
                        {}};
  auto first = image_of(spec, "sm_80");
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->origin, ImageOrigin::kCompiler);
  EXPECT_GT(first->compile_seconds, 0);
  EXPECT_GT(resource_use(first->kernel.log, "fill")->registers, 0);
  auto second = image_of(spec, "sm_80");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->origin, ImageOrigin::kCache);
  EXPECT_EQ(second->kernel.image, first->kernel.image);
  ASSERT_EQ(setenv("FLASHLAB_PRECOMPILED", folder.c_str(), 1), 0);
  EXPECT_EQ(image_of(spec, "sm_80")->origin, ImageOrigin::kPrecompiled);
  unsetenv("FLASHLAB_PRECOMPILED");
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  auto refused = image_of(spec, "sm_80");
  ASSERT_TRUE(refused.ok()) << "a cache that cannot be used only costs time";
  EXPECT_EQ(refused->origin, ImageOrigin::kCompiler);
  EXPECT_THAT(refused->cache_warning, HasSubstr("others may write"));
  unsetenv("FLASHLAB_CACHE");
  fs::remove_all(folder);
}

TEST_F(Compiler, EntriesOfASourceShareAnImage) {
  KernelSpec spec{"config_types.h",
                  "first",
                  "extern \"C\" __global__ void first() {}\n"
                  "extern \"C\" __global__ void second() {}\n",
                  {}};
  const auto image = compile_image(spec, "sm_80");
  ASSERT_TRUE(image.ok()) << image.status().message();
  for (const char* entry : {"first", "second"}) {
    EXPECT_TRUE(resource_use(image->kernel.log, entry).ok()) << entry;
  }
  const std::string stem = key_of(spec, "sm_80")->file_stem();
  spec.entry = "second";
  EXPECT_EQ(key_of(spec, "sm_80")->file_stem(), stem);
  EXPECT_EQ(stem.rfind("config_types-sm_80-", 0), 0u);
}

TEST_F(Compiler, ACacheThatIsOfNoUseOnlyCostsTime) {
  const KernelSpec spec{"config_types.h",
                        "nothing",
                        "struct Config {};\nextern \"C\" __global__ void nothing() {}\n",
                        {}};
  std::string folder = (fs::temp_directory_path() / "flashlab-images-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(setenv("FLASHLAB_CACHE", folder.c_str(), 1), 0);
  const auto origin = [&] {
    const auto image = image_of(spec, "sm_80");
    EXPECT_TRUE(image.ok()) << image.status().message();
    return image.ok() ? image->origin : ImageOrigin::kPrecompiled;
  };
  EXPECT_EQ(origin(), ImageOrigin::kCompiler);
  EXPECT_EQ(origin(), ImageOrigin::kCache);
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ofstream(entry.path(), std::ios::binary | std::ios::app) << "x";
  }
  EXPECT_EQ(origin(), ImageOrigin::kCompiler) << "damaged";
  EXPECT_EQ(origin(), ImageOrigin::kCache) << "and written anew";
  const std::string file = folder + "/file";
  std::ofstream(file) << "x";
  ASSERT_EQ(setenv("FLASHLAB_CACHE", file.c_str(), 1), 0);
  EXPECT_THAT(image_of(spec, "sm_80")->cache_warning, HasSubstr("name a folder in FLASHLAB_CACHE"));
  if (geteuid() == 0) {
    ASSERT_EQ(setenv("FLASHLAB_CACHE", folder.c_str(), 1), 0);
    ASSERT_EQ(chown(folder.c_str(), 65534, 65534), 0);
    const auto foreign = image_of(spec, "sm_80");
    EXPECT_EQ(foreign->origin, ImageOrigin::kCompiler);
    EXPECT_THAT(foreign->cache_warning, HasSubstr("a folder of your own"));
  }
  unsetenv("FLASHLAB_CACHE");
  fs::remove_all(folder);
}

TEST_F(Compiler, AGpuNewerThanTheCompilerGetsPtx) {
  const KernelSpec spec{"config_types.h",
                        "fill",
                        "struct Config { static constexpr int kValue = 7; };\n"
                        "extern \"C\" __global__ void fill(int* x) { *x = Config::kValue; }\n",
                        {}};
  const auto image = compile_image(spec, "sm_990a");
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_THAT(image->kernel.image, HasSubstr(".target sm_"));
}

TEST_F(Compiler, ListsItsArchitectures) {
  EXPECT_THAT(nvrtc_->architectures(), ::testing::Contains(80));
  EXPECT_THAT(nvrtc_->architectures(), ::testing::Contains(90));
}

}  // namespace
}  // namespace flashlab::cuda
