declare module "*/verify.js" {
  export type Check = { name: string; ok: boolean | null; detail: string };
  export type Result = { checks: Check[]; statement: object | null; signers: string[]; issuer: string | null };
  export type Verdict = { level: "proved" | "consistent" | "unknown" | "failed"; sentence: string };
  export type Keys = Map<string, Uint8Array>;
  export function keysOf(pem: string): Keys;
  export function fingerprintIn(text: string): string | null;
  export function bytesOfBase64(text: string): Uint8Array;
  export function verifyCertificate(bytes: Uint8Array, keys: Keys, subtle: SubtleCrypto | null): Promise<Result>;
  export function judge(result: Result, fingerprint: string, areKeysOwn: boolean): Verdict;
  export function factsOf(statement: object): [string, string][];
}

