#pragma once
#include "ptx/warp.h"
