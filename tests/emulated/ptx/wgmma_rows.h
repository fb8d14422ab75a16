#pragma once

// wgmma.h takes every number of columns.
#include "ptx/wgmma.h"
