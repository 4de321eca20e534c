"""Which estimator trains three models soonest on one CPU core, and does `catlog.advise` find it?

    python -m benchmarks.cpu_races trial --jobs 15       # curves on seeds that do not judge
    python -m benchmarks.cpu_races targets               # chooses the targets from them
    python -m benchmarks.cpu_races pilot                 # what `catlog.advise` picks
    python -m benchmarks.cpu_races run --jobs 15         # the races; results/speed/cpu_races.csv

The races (races.py) are the MNIST-5000 autoencoder with 200 bits, the same with 20 one-hot
variables of 10 categories, and hard attention. Batches of 100 images, Adam; start and batches
depend on the seed alone. A run has one thread, and its clock counts the CPU seconds of the training
steps (`time.process_time`), so that neighbours on the machine disturb it less. The clock stops
while the training bound or accuracy is measured, after every second of training, on all training
images with the same random numbers. A run ends at the target or after --limit CPU seconds.

The targets are chosen before the judging seeds run: `trial` trains with other seeds and without a
target, and `targets` takes the level that the second-best estimator has after 25 CPU seconds.

A run that ends is added to the file of --runs, and its thinned curve to that of --curves. Runs that
the file holds are skipped, and interrupted ones start again. `run` also races the picks.
`--until S` starts no run later than S seconds from now. docs/race.md names the best of every race,
and compares the picks with it (`python docs/render.py race`).

`pilot` calls `catlog.advise` with its default settings at the start of training, in a new process
each time.
"""
