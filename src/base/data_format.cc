#include "base/data_format.h"
