#pragma once

// The lab's one door: all that the command line may ask of the instruments. `src/cli` includes this
// header and none behind it (tools/lint.py), so what is not here can change without it.

// What a run is made on.
#include "lab/machine/child_process.h"
#include "lab/machine/doctor.h"
#include "lab/machine/environment.h"
#include "lab/machine/gpu_choice.h"
#include "lab/machine/gpu_environment.h"
#include "lab/machine/memory.h"
#include "lab/machine/monitor.h"

// How a time becomes a number.
#include "lab/measure/cpu_roof.h"
#include "lab/measure/gpu_clock.h"
#include "lab/measure/gpu_ruler.h"

// The inputs of a case: drawn, or a user's.
#include "lab/data/case_data.h"
#include "lab/data/tensor_file/tensor_file.h"

// Rows, files, verdicts.
#include "lab/results/baseline.h"
#include "lab/results/results_json.h"
#include "lab/results/subject.h"
#include "lab/results/verdict.h"

// Is it right.
#include "lab/check/check.h"

// What is measured.
#include "lab/subjects/attention/attention_subject.h"
#include "lab/subjects/attention/problem_run.h"
#include "lab/subjects/step/step_bench.h"
#include "lab/subjects/step/step_subject.h"
#include "lab/subjects/step/torch_parallel.h"
#include "lab/subjects/step/torch_steps.h"

// Peers that run in Python.
#include "lab/python/python_worker.h"

// Tables, pictures, pages.
#include "lab/report/chart.h"
#include "lab/report/curves.h"
#include "lab/report/formats.h"
#include "lab/report/group.h"
#include "lab/report/ladder.h"
#include "lab/report/numbers.h"
#include "lab/report/output.h"
#include "lab/report/table.h"

// Kernels compiled ahead.
#include "lab/kernels/described.h"
#include "lab/kernels/precompile.h"
#include "lab/kernels/problem_file.h"
