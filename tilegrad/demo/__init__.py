"""What ``tilegrad demo`` and ``make demo`` run: two small networks on scikit-learn's handwritten digits, from code to library."""
