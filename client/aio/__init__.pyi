from ..groups.push.aio_consumer import PushConsumer as PushConsumer
from ..groups.push.aio_members import GroupConsumer as GroupConsumer
from ..groups.transactions.aio_producer import Transaction as Transaction
from ..groups.transactions.aio_producer import TransactionProducer as TransactionProducer
from .admin import Admin as Admin
from .consumer import Consumer as Consumer
from .producer import Producer as Producer
from .sender import SendFuture as SendFuture
