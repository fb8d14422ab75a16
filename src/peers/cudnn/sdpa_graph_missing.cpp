#include "peers/cudnn/sdpa_graph.h"

namespace flashlab::peers {

Result<std::unique_ptr<SdpaGraph>> SdpaGraph::build(const Problem&, const internal::Geometry&) {
  return Status::unsupported(
      {"cudnn", "a build without cuDNN's headers", "one that found cudnn_frontend.h and cudnn.h",
       "pip install nvidia-cudnn-frontend nvidia-cudnn-cu13, then configure with "
       "-DFLASHLAB_CUDNN_FRONTEND_DIR=... -DFLASHLAB_CUDNN_DIR=..."});
}

}  // namespace flashlab::peers
