"""Removes results by key or tag, from the database and from the memory of all workers, as flows."""

from __future__ import annotations

from comporta.cache import tags
from comporta.cache.invalidation import LOG_MAX, Invalidations
from comporta.cache.local import LocalCache, key_digest
from comporta.cache.repository import CacheRepository
from comporta.database.command import Command
from comporta.flow import Flow


class CacheRemoval:
    """Removes rows; ``name`` is the name of the cache, whose tags are separate from those of other caches."""

    def __init__(
        self,
        name: str,
        repository: CacheRepository,
        local: LocalCache,
        invalidations: Invalidations,
        *,
        shared: bool,
    ) -> None:
        self._name = name
        self._repository = repository
        self._local = local
        self._invalidations = invalidations
        self._shared = shared

    def delete_flow(self, key: str) -> Flow[bool]:
        """Remove the rows of a key and its failures; return whether there was a row."""
        removed = yield from self._remove_all_flow(tags.remove_key(key))
        self._local.invalidate(key_digest(key))
        if not removed:  # the key may have been in backoff in other workers
            yield from self._invalidations.publish_flow(key_digest(key))
        return removed > 0

    def invalidate_flow(self, key: str | None, tag: str | None, prefix: str | None) -> Flow[int]:
        """Remove the rows with a key, with a tag, or with a key that starts with ``prefix``; count them."""
        given = [
            (kind, text, is_prefix)
            for kind, text, is_prefix in (
                (tags.KEY, key, False),
                (tags.TAG, tag, False),
                (tags.KEY, prefix, True),
            )
            if text is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of key, tag and prefix, got key={key!r:.50}, tag={tag!r:.50}, "
                f"prefix={prefix!r:.50}"
            )
        [(kind, text, is_prefix)] = given
        stored = tags.stored_tag(self._name, kind, text)
        return (
            yield from self._remove_all_flow(
                tags.remove_tagged(stored, prefix=is_prefix, shared=self._shared)
            )
        )

    def _remove_all_flow(self, command: Command[list[str]]) -> Flow[int]:
        """Run a command until it removes nothing more, and invalidate what it removed."""
        count = 0
        while True:
            hashes = yield from self._repository.remove_flow(command)
            count += len(hashes)
            for params_hash in set(hashes):
                self._local.invalidate(key_digest(params_hash))
            # a worker that misses one entry of the log drops its whole local cache
            for params_hash in list(dict.fromkeys(hashes))[: LOG_MAX + 1]:
                yield from self._invalidations.publish_flow(key_digest(params_hash))
            if len(hashes) < tags.REMOVED_MAX:
                return count
