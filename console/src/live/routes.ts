import { signal } from "@preact/signals";
import { ApiError, get } from "./api.ts";

/** Methods of the node's routes, as `GET /v1/storms`; undefined until they are read. */
export const routes = signal<ReadonlySet<string> | undefined>(undefined);

/** Why they could not be read the last time. */
export const routesFailure = signal<ApiError | undefined>(undefined);

/** Time between two attempts. */
const AGAIN_MS = 2000;

/** Names of the routes in a description of the API. */
export function namesOf(paths: Readonly<Record<string, Readonly<Record<string, unknown>>>>): ReadonlySet<string> {
  return new Set(Object.entries(paths).flatMap(([path, methods]) => Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`)));
}

/** Reads the routes of the node, until it has answered once; returns how to end that. Another version of the node has another page. */
export function readRoutes(): () => void {
  let [timer, isOver] = [0, false];
  const read = async () => {
    try {
      routes.value = namesOf((await get<{ readonly paths: Record<string, Record<string, unknown>> }>("/v1/openapi.json")).paths);
      routesFailure.value = undefined;
    } catch (error) {
      if (error instanceof ApiError) routesFailure.value = error;
      if (!isOver) timer = window.setTimeout(() => void read(), AGAIN_MS);
    }
  };
  if (!routes.value) void read();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** Whether the node has a route. */
export function hasRoute(name: string): boolean {
  return routes.value?.has(name) ?? false;
}
