// Pins compute threads to CPUs on machines with several NUMA nodes.
#pragma once

// Pins the calling thread, number `thread` of the pool, if places were set.
void pin_thread(int thread);
