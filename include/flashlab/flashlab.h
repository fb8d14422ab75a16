#pragma once

/// Everything of the public API in one include.
#include "flashlab/attention.h"
#include "flashlab/cache.h"
#include "flashlab/context.h"
#include "flashlab/schedule.h"
#include "flashlab/status.h"
#include "flashlab/tensor.h"
#include "flashlab/tensor_table.h"
#include "flashlab/version.h"
