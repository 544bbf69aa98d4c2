"""Upstreams: one object that applies limit, breaker, retries, permits and time-out to every call.

- ``upstream``: the public class, ``Upstream``
- ``sync_upstream``: its methods for blocking code, ``upstream.sync``
- ``registry``: all upstreams of a program from one settings file
- ``policies``: the policies of one upstream, and the state that its calls share
- ``factory``: creates the policies from the options of an upstream
- ``limit_tokens``: what an attempt takes from one limit or from several
- ``flows``: one call: its attempts, its end, and the end of its body
- ``call_state``: everything that one call holds
- ``attempt_admission``, ``attempt_outcome``: an attempt before and after the user's function
- ``fast_path``: the same path for an ordinary call, without a flow
- ``guarded_function``: the wrappers of ``guard``, which need no object for an ordinary call
- ``replaceable_guards``: guarded functions that follow reloaded settings
- ``attempt``: one attempt at the user's function, within its time-out
- ``observation``: calls hooks and listeners for the attempts of a call
- ``report``: what happened to a call
- ``recent_failures``: the latest failures in this process, with their texts
- ``health``: the state of an upstream for health pages
- ``options``: options of single calls, for a view of an upstream
- ``body``: the last part of an attempt, in which the caller reads the answer
- ``renewal``: renews the permit of an attempt during that part
- ``generators``: generator functions as attempts
- ``httpx_transport``, ``httpx_streams``, ``requests_adapter``, ``aiohttp_middleware``: HTTP clients whose
  requests go through an upstream
- ``replay``: which requests may be sent again
- ``client_errors``: refusals as exceptions of an HTTP client
"""
