// The vendored modules, as far as the dashboard uses them. Components are untyped: templates are texts.
type Setter<T> = (next: T | ((before: T) => T)) => void;
type Signal<T> = { value: T };
type Cleanup = void | (() => void);

export function html(strings: TemplateStringsArray, ...values: unknown[]): any;
export function render(what: unknown, where: Element): void;
export const icons: Record<string, [string, Record<string, string>][]>;
export function signal<T>(value: T): Signal<T>;
export function useState<T = any>(initial?: T | (() => T)): [T, Setter<T>];
export function useRef<T = any>(initial: T): { current: T };
export function useMemo<T>(make: () => T, keys: unknown[]): T;
export function useId(): string;
export function useEffect(act: () => Cleanup, keys?: unknown[]): void;
export function useLayoutEffect(act: () => Cleanup, keys?: unknown[]): void;
export function useErrorBoundary(): [any, () => void];
