"""The other methods of ``google.pubsub.v1.Publisher``: topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

from hedged_pubsub.testing.broker import Broker, StatusError

_DEFAULT_PAGE_SIZE = 100


def unary(behaviour: Callable[[Any], Any], request: Any, response: Any) -> grpc.RpcMethodHandler:
    """Wraps a function from request to response; a `StatusError` becomes the call's status.

    Args:
        behaviour: the function.
        request: raw protobuf class of the request.
        response: raw protobuf class of the response.
    """

    def call(message: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behaviour(message)
        except StatusError as error:
            context.set_code(error.code)
            context.set_details(error.details)
            return response()

    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


def page(items: Sequence[Any], page_size: int, page_token: str) -> tuple[Sequence[Any], str]:
    """Returns one page of the items and the token of the next page, empty after the last.

    Raises:
        StatusError: INVALID_ARGUMENT for a token that is none of ours.
    """
    if page_token and not page_token.isdecimal():
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT, f"page_token={page_token!r} is not from this server"
        )
    start = int(page_token or 0)
    end = start + (page_size if page_size > 0 else _DEFAULT_PAGE_SIZE)
    return items[start:end], str(end) if end < len(items) else ""


def methods(broker: Broker) -> dict[str, grpc.RpcMethodHandler]:
    """Returns the methods by name, all but Publish."""
    topic = types.Topic.pb()
    list_topics_response = types.ListTopicsResponse.pb()
    list_subscriptions_response = types.ListTopicSubscriptionsResponse.pb()

    def list_topics(request: Any) -> Any:
        topics, token = page(broker.topics(request.project), request.page_size, request.page_token)
        return list_topics_response(topics=topics, next_page_token=token)

    def list_topic_subscriptions(request: Any) -> Any:
        names = [s.name for s in broker.subscriptions(topic=request.topic)]
        found, token = page(names, request.page_size, request.page_token)
        return list_subscriptions_response(subscriptions=found, next_page_token=token)

    def delete_topic(request: Any) -> Any:
        broker.delete_topic(request.topic)
        return empty_pb2.Empty()

    return {
        "CreateTopic": unary(broker.create_topic, topic, topic),
        "GetTopic": unary(
            lambda request: broker.topic(request.topic), types.GetTopicRequest.pb(), topic
        ),
        "ListTopics": unary(list_topics, types.ListTopicsRequest.pb(), list_topics_response),
        "UpdateTopic": unary(
            lambda request: broker.update_topic(request.topic, request.update_mask),
            types.UpdateTopicRequest.pb(),
            topic,
        ),
        "DeleteTopic": unary(delete_topic, types.DeleteTopicRequest.pb(), empty_pb2.Empty),
        "ListTopicSubscriptions": unary(
            list_topic_subscriptions,
            types.ListTopicSubscriptionsRequest.pb(),
            list_subscriptions_response,
        ),
    }
