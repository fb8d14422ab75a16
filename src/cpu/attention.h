#pragma once

#include "api/implementation.h"

namespace flashlab::internal {

/// The production implementation on CPUs: "cpu".
const Implementation& cpu_implementation();

}  // namespace flashlab::internal
