"""The estimators, one file per family or per large method."""

from .control_variates import REBAR as REBAR
from .coupled import ARMS as ARMS
from .coupled import DisARM as DisARM
from .exact import Exact as Exact
from .indecater import IndeCateR as IndeCateR
from .scater import SCateR as SCateR
from .score_function import RLOO as RLOO
from .score_function import VIMCO as VIMCO
from .score_function import Reinforce as Reinforce
from .sets import UnorderedSet as UnorderedSet
from .slopecater import SlopeCateR as SlopeCateR
from .slopecater import SlopeState as SlopeState
from .straight_through import GumbelRao as GumbelRao
from .straight_through import GumbelSoftmax as GumbelSoftmax
from .straight_through import ReinMax as ReinMax
from .straight_through import StraightThrough as StraightThrough
from .straight_through import Through as Through
