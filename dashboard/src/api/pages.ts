/** Lists come in pages: all of one, or page after page while somebody scrolls. */
import { useInfiniteQuery, type InfiniteData } from "@tanstack/react-query";

export type PageOf<T> = { items: T[]; next_cursor?: string | null };
export const PAGE = 200;

/** Every page, up to `most` items. `tell` hears of those that have come so far. */
export async function everything<T>(page: (cursor?: string) => Promise<PageOf<T>>, most = 20_000, tell?: (some: T[]) => void): Promise<T[]> {
  const items: T[] = [];
  for (let cursor: string | undefined; items.length < most; ) {
    const next = await page(cursor);
    items.push(...next.items);
    if (!next.next_cursor) break;
    cursor = next.next_cursor;
    tell?.([...items]);
  }
  return items;
}

export function usePages<T>(key: readonly unknown[], page: (cursor?: string) => Promise<PageOf<T>>, isEnabled = true) {
  const query = useInfiniteQuery<PageOf<T>, Error, InfiniteData<PageOf<T>>, readonly unknown[], string | undefined>({
    queryKey: key,
    queryFn: ({ pageParam }) => page(pageParam),
    initialPageParam: undefined,
    getNextPageParam: (last) => last.next_cursor ?? undefined,
    enabled: isEnabled,
  });
  return {
    items: query.data?.pages.flatMap((one) => one.items) ?? [],
    isLoading: query.isPending && isEnabled,
    error: query.error,
    more: query.hasNextPage && !query.isFetchingNextPage ? () => void query.fetchNextPage() : undefined,
    isMore: query.hasNextPage,
    retry: () => void query.refetch(),
  };
}
