"""Layers and models, in PyTorch's manner."""

from tilegrad.frontend.nn import functional as functional
from tilegrad.frontend.nn.attention import MultiheadAttention as MultiheadAttention
from tilegrad.frontend.nn.attention import TransformerEncoder as TransformerEncoder
from tilegrad.frontend.nn.attention import TransformerEncoderLayer as TransformerEncoderLayer
from tilegrad.frontend.nn.layers import (
    ELU as ELU,
)  # fmt: skip
from tilegrad.frontend.nn.layers import (
    GELU as GELU,
)
from tilegrad.frontend.nn.layers import (
    GLU as GLU,
)
from tilegrad.frontend.nn.layers import (
    SELU as SELU,
)
from tilegrad.frontend.nn.layers import (
    AdaptiveAvgPool1d as AdaptiveAvgPool1d,
)
from tilegrad.frontend.nn.layers import (
    AdaptiveAvgPool2d as AdaptiveAvgPool2d,
)
from tilegrad.frontend.nn.layers import (
    AdaptiveAvgPool3d as AdaptiveAvgPool3d,
)
from tilegrad.frontend.nn.layers import (
    AvgPool1d as AvgPool1d,
)
from tilegrad.frontend.nn.layers import (
    AvgPool2d as AvgPool2d,
)
from tilegrad.frontend.nn.layers import (
    AvgPool3d as AvgPool3d,
)
from tilegrad.frontend.nn.layers import (
    Conv1d as Conv1d,
)
from tilegrad.frontend.nn.layers import (
    Conv2d as Conv2d,
)
from tilegrad.frontend.nn.layers import (
    Conv3d as Conv3d,
)
from tilegrad.frontend.nn.layers import (
    ConvTranspose1d as ConvTranspose1d,
)
from tilegrad.frontend.nn.layers import (
    ConvTranspose2d as ConvTranspose2d,
)
from tilegrad.frontend.nn.layers import (
    ConvTranspose3d as ConvTranspose3d,
)
from tilegrad.frontend.nn.layers import (
    Flatten as Flatten,
)
from tilegrad.frontend.nn.layers import (
    Hardsigmoid as Hardsigmoid,
)
from tilegrad.frontend.nn.layers import (
    Hardswish as Hardswish,
)
from tilegrad.frontend.nn.layers import (
    Hardtanh as Hardtanh,
)
from tilegrad.frontend.nn.layers import (
    Identity as Identity,
)
from tilegrad.frontend.nn.layers import (
    LeakyReLU as LeakyReLU,
)
from tilegrad.frontend.nn.layers import (
    Linear as Linear,
)
from tilegrad.frontend.nn.layers import (
    LogSigmoid as LogSigmoid,
)
from tilegrad.frontend.nn.layers import (
    LogSoftmax as LogSoftmax,
)
from tilegrad.frontend.nn.layers import (
    MaxPool1d as MaxPool1d,
)
from tilegrad.frontend.nn.layers import (
    MaxPool2d as MaxPool2d,
)
from tilegrad.frontend.nn.layers import (
    MaxPool3d as MaxPool3d,
)
from tilegrad.frontend.nn.layers import (
    Mish as Mish,
)
from tilegrad.frontend.nn.layers import (
    ModuleDict as ModuleDict,
)
from tilegrad.frontend.nn.layers import (
    ModuleList as ModuleList,
)
from tilegrad.frontend.nn.layers import (
    PReLU as PReLU,
)
from tilegrad.frontend.nn.layers import (
    ReLU as ReLU,
)
from tilegrad.frontend.nn.layers import (
    ReLU6 as ReLU6,
)
from tilegrad.frontend.nn.layers import (
    Sequential as Sequential,
)
from tilegrad.frontend.nn.layers import (
    Sigmoid as Sigmoid,
)
from tilegrad.frontend.nn.layers import (
    SiLU as SiLU,
)
from tilegrad.frontend.nn.layers import (
    Softmax as Softmax,
)
from tilegrad.frontend.nn.layers import (
    Softplus as Softplus,
)
from tilegrad.frontend.nn.layers import (
    Tanh as Tanh,
)
from tilegrad.frontend.nn.module import Module as Module
from tilegrad.frontend.nn.module import Parameter as Parameter
from tilegrad.frontend.nn.normalisation import (
    BatchNorm1d as BatchNorm1d,
)  # fmt: skip
from tilegrad.frontend.nn.normalisation import (
    BatchNorm2d as BatchNorm2d,
)
from tilegrad.frontend.nn.normalisation import (
    BatchNorm3d as BatchNorm3d,
)
from tilegrad.frontend.nn.normalisation import (
    Dropout as Dropout,
)
from tilegrad.frontend.nn.normalisation import (
    Dropout2d as Dropout2d,
)
from tilegrad.frontend.nn.normalisation import (
    Embedding as Embedding,
)
from tilegrad.frontend.nn.normalisation import (
    GroupNorm as GroupNorm,
)
from tilegrad.frontend.nn.normalisation import (
    InstanceNorm1d as InstanceNorm1d,
)
from tilegrad.frontend.nn.normalisation import (
    InstanceNorm2d as InstanceNorm2d,
)
from tilegrad.frontend.nn.normalisation import (
    InstanceNorm3d as InstanceNorm3d,
)
from tilegrad.frontend.nn.normalisation import (
    LayerNorm as LayerNorm,
)
from tilegrad.frontend.nn.normalisation import (
    RMSNorm as RMSNorm,
)
from tilegrad.frontend.nn.recurrent import GRU as GRU
from tilegrad.frontend.nn.recurrent import LSTM as LSTM
