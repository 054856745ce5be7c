// On which CPUs the threads that compute run, where a machine has several NUMA nodes.
#pragma once

// The calling thread is this one of the pool: it goes where its place is, if there are places.
void keep_in_place(int thread);
