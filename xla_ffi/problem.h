#pragma once

#include "cuda/common/problem.h"
