#pragma once

// Where the libraries of NVIDIA's are looked for that attention does without, and how to get them.

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/library/library.h"

namespace flashlab::cuda {

struct NvidiaLibrary {
  const char* soname;
  const char* variable;  ///< names a file, which is then the only candidate
  std::vector<std::string> sonames;
  const char* pattern;  ///< in a toolkit or a Python environment
  const char* remedy;

  /// For Library::open.
  std::vector<std::string> candidates() const {
    if (const char* named = std::getenv(variable); named != nullptr && *named != '\0') {
      return {named};
    }
    std::vector<std::string> out = sonames;
    for (std::string& path : toolkit_paths(pattern)) out.push_back(std::move(path));
    return out;
  }
};

inline NvidiaLibrary cublas_lt_library() {
  return {"libcublasLt.so",
          "FLASHLAB_CUBLASLT",
          {"libcublasLt.so.13", "libcublasLt.so.12"},
          "libcublasLt.so.1[2-9]",
          "pip install nvidia-cublas, or NVIDIA's toolkit; FLASHLAB_CUBLASLT names a file"};
}

inline NvidiaLibrary cudnn_library() {
  return {"libcudnn.so",
          "FLASHLAB_CUDNN",
          {"libcudnn.so.9"},
          "libcudnn.so.9",
          "pip install nvidia-cudnn-cu13; FLASHLAB_CUDNN names a file"};
}

inline NvidiaLibrary nccl_library() {
  return {"libnccl.so",
          "FLASHLAB_NCCL",
          {"libnccl.so.2"},
          "libnccl.so.2",
          "pip install nvidia-nccl-cu13, or NVIDIA's package libnccl2; FLASHLAB_NCCL names a file"};
}

inline NvidiaLibrary cupti_library() {
  return {"libcupti.so",
          "FLASHLAB_CUPTI",
          {"libcupti.so.13", "libcupti.so.12"},
          "libcupti.so.1[2-9]",
          "pip install nvidia-cuda-cupti, or NVIDIA's toolkit; FLASHLAB_CUPTI names a file"};
}

}  // namespace flashlab::cuda
