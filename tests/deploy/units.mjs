// Reads quantities of Kubernetes and values of attnd's options. NaN for what is neither.

const binary = {'': 1, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40};
const decimal = {m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12};
const seconds = {ms: 1e-3, s: 1, m: 60, h: 3600};

// "4Gi" -> 4294967296, "500m" -> 0.5.
export function quantity(text) {
  const [, number, unit] = /^([0-9.]+)([A-Za-z]*)$/.exec(String(text)) ?? [];
  return Number(number) * (binary[unit] ?? decimal[unit]);
}

// "3GiB" -> 3221225472.
export function byteSize(text) {
  const [, number, unit] = /^([0-9.]+)(?:([KMGT]i)?B)?$/.exec(String(text)) ?? [];
  return Number(number) * binary[unit ?? ''];
}

// "1m30s" -> 90.
export function duration(text) {
  if (text === '0') return 0;
  if (!/^([0-9.]+(ms|s|m|h))+$/.test(String(text))) return NaN;
  return [...text.matchAll(/([0-9.]+)(ms|s|m|h)/g)]
    .reduce((sum, [, number, unit]) => sum + Number(number) * seconds[unit], 0);
}

export const mebibytes = (bytes) => `${Math.ceil(bytes / 2 ** 20)} MiB`;
