"""Files whose examples cannot be collected everywhere."""

from importlib.util import find_spec

# The kernels' decorators need Triton, which not every platform has.
collect_ignore = [] if find_spec("triton") else ["src/counterpoint/objectives/triton_kernels.py"]
