// Which of cuBLASLt's algorithms runs a product, against stand-ins for it and for the driver
// (runtime_fake_cublas_lt.cpp, cuda_fake_driver.cpp): two GPUs of one model.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/kernel_store/cache.h"
#include "runtime/products/cublas_lt.h"

namespace flashlab::runtime {
namespace {

namespace fs = std::filesystem;

class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("FAKE_CUDA", "two", 1), 0);
    ASSERT_EQ(setenv("FLASHLAB_CUBLASLT", FLASHLAB_FAKE_DRIVER, 1), 0);
    void* fake = dlopen(FLASHLAB_FAKE_DRIVER, RTLD_NOW);
    ASSERT_NE(fake, nullptr) << dlerror();
    ran_ = static_cast<int*>(dlsym(fake, "fake_products"));
    last_ = static_cast<std::uint64_t*>(dlsym(fake, "fake_algorithm"));
    first_ = static_cast<std::uint64_t*>(dlsym(fake, "fake_first_algorithm"));
    handle_ = static_cast<void**>(dlsym(fake, "fake_handle"));
    short_ = static_cast<bool*>(dlsym(fake, "fake_short"));
    event_ms_ = static_cast<float*>(dlsym(fake, "fake_event_ms"));
    *ran_ = 0;
    std::string name = (fs::temp_directory_path() / "flashlab-products-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    ASSERT_EQ(setenv("FLASHLAB_CACHE", folder_.c_str(), 1), 0);
    for (int i = 0; i < 2; ++i) {
      auto gpu = cuda::GpuDevice::open(i);
      ASSERT_TRUE(gpu.ok()) << gpu.status().message();
      auto library = cuda::CublasLt::of(**gpu);
      ASSERT_TRUE(library.ok()) << library.status().message();
      library_[i] = *library;
    }
  }
  void TearDown() override {
    *first_ = 100, *short_ = false, *event_ms_ = 0.5f;
    fs::remove_all(folder_);
  }

  // The table is the process's: each test has products of its own.
  static Product product(std::int64_t m) {
    const Matrix matrix{.dtype = DType::kBf16, .row_stride = 64};
    return {.m = m, .n = 64, .k = 64, .a = matrix, .b = matrix, .c = matrix};
  }

  // The algorithm that runs.
  std::uint64_t algorithm(int gpu, const Product& wanted) {
    const auto prepared = library_[gpu]->prepare(wanted);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared.ok() ? (*prepared)->choice.algorithm.data[0] : 0;
  }
  std::size_t kept() const {
    const auto files = cuda::KernelCache(folder_).list();
    return files.ok() ? files->size() : 0;
  }

  int* ran_ = nullptr;
  bool* short_ = nullptr;
  float* event_ms_ = nullptr;
  void** handle_ = nullptr;
  std::uint64_t *last_ = nullptr, *first_ = nullptr;
  const cuda::CublasLt* library_[2] = {};
  std::string folder_;
};

TEST_F(Products, TheFastestAlgorithmRuns) {
  const Product p = product(16);
  EXPECT_EQ(algorithm(0, p), 101u);
  EXPECT_GT(*ran_, 3);  // all that can were tried
  const auto prepared = library_[0]->prepare(p);
  ASSERT_TRUE(library_[0]->run(**prepared, p, nullptr, nullptr, nullptr, nullptr, nullptr).ok());
  EXPECT_EQ(*last_, 101u);
}

// A handle is of the GPU that was current when it was made.
TEST_F(Products, EachGpuHasAHandleOfItsOwn) {
  const Product p = product(22);
  void* handles[3];
  for (int turn = 0; turn < 3; ++turn) {
    const cuda::CublasLt& library = *library_[turn % 2];
    const auto prepared = library.prepare(p);
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    ASSERT_TRUE(library.run(**prepared, p, nullptr, nullptr, nullptr, nullptr, nullptr).ok());
    handles[turn] = *handle_;
  }
  EXPECT_NE(handles[0], handles[1]);
  EXPECT_EQ(handles[0], handles[2]);
}

// The same algorithm with a workspace takes longer: what is in it is cleared before.
TEST_F(Products, TheFastestIsOneWithoutAWorkspace) {
  const auto prepared = library_[0]->prepare(product(21));
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  EXPECT_EQ((*prepared)->choice.workspace_bytes, 0u);
  // The other GPU finds on the disk which of the two it was.
  const int measured = *ran_;
  const auto other = library_[1]->prepare(product(21));
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ((*other)->choice.workspace_bytes, 0u);
  EXPECT_EQ(*ran_, measured);
}

// Alone the second algorithm is the fastest of a short product; among others of a graph, where a
// step has it, it is not.
TEST_F(Products, AShortOneIsTimedInAGraph) {
  *short_ = true, *event_ms_ = 0;
  EXPECT_EQ(algorithm(0, product(23)), 102u);
}

TEST_F(Products, ALongProductOfWholeTilesIsOfferedWhatFewerRowsAre) {
  Product p = product(1664);
  p.n = 4096;
  EXPECT_EQ(algorithm(0, p), 101u);  // not long
  p.k = 151936;
  EXPECT_EQ(algorithm(0, p), 110u);
}

TEST_F(Products, AProductIsMeasuredOnce) {
  EXPECT_EQ(algorithm(0, product(17)), 101u);
  const int measured = *ran_;
  EXPECT_EQ(algorithm(0, product(17)), 101u);
  EXPECT_EQ(*ran_, measured);
  // The other GPU has a table of its own and finds it on the disk: they are of one model.
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(algorithm(1, product(17)), 101u);
  EXPECT_EQ(*ran_, measured);
  // Another type, another product.
  Product wide = product(17);
  wide.c.dtype = DType::kFp32;
  EXPECT_EQ(algorithm(1, wide), 101u);
  EXPECT_GT(*ran_, measured);
  EXPECT_EQ(kept(), 2u);
}

TEST_F(Products, WhatTheLibraryDoesNotOfferIsNotRun) {
  EXPECT_EQ(algorithm(0, product(18)), 101u);
  const int measured = *ran_;
  *first_ = 200;
  EXPECT_EQ(algorithm(1, product(18)), 201u);
  EXPECT_GT(*ran_, measured);
}

TEST_F(Products, UnmeasuredIsTheFirstChoice) {
  Product p = product(19);
  p.measured = false;
  EXPECT_EQ(algorithm(0, p), 100u);
  EXPECT_EQ(*ran_, 0);
  EXPECT_EQ(kept(), 0u);
}

TEST_F(Products, WithoutMemoryTheFirstChoiceRuns) {
  Product p = product(20);
  p.c.row_stride = std::int64_t{1} << 30;
  EXPECT_EQ(algorithm(0, p), 100u);
  EXPECT_EQ(kept(), 0u);
}

}  // namespace
}  // namespace flashlab::runtime
