#!/bin/bash
# Sets up, builds and runs the main job: two daemons on this machine, two PyTorch ranks each, Fashion-MNIST through
# a ring compressed by LACO, and a status table at the end.   demo.sh [EPOCHS]
set -euo pipefail
cd "$(dirname "$0")/../.."
epochs=${1:-4}
tools/dev/setup.sh
tools/dev/build.sh release gradwire_installed
exec build/release/tools/gradwire run -n 2 -l 2 --codec laco \
  --set compression.density=0.01 --set compression.warm_start_steps=40 -- \
  /usr/bin/python3 tools/examples/fashion_mnist.py --model cnn --epochs "$epochs"
