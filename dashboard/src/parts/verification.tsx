/** Verification in the browser, by the script that certificate pages carry themselves. */
import { useEffect, useState } from "react";
import { factsOf, judge, keysOf, verifyCertificate, type Result, type Verdict } from "../../../services/audit/pages/verify.js";
import { Facts } from "./basics";
import { Icon, type IconName } from "./icon";

const WORDS: Record<Verdict["level"], [IconName, string]> = {
  proved: ["check", "Proved"], consistent: ["dot", "Consistent, not proved"], unknown: ["question", "Not checked"], failed: ["cross", "Failed"],
};
const TONES = { proved: "good", consistent: "unsure", unknown: "unsure", failed: "bad" };
const MARKS = new Map<boolean | null, [IconName, string]>([[true, ["check", "holds"]], [false, ["cross", "does not hold"]], [null, ["dash", "not checked"]]]);
const subtle = window.isSecureContext ? window.crypto.subtle : null;

export const BEYOND =
  "Checked here are the form and the signatures. lethe verify also checks that the claims do not contradict each other, that the " +
  "list of artefacts is the certified one, whom it is about, and, with --replay, that the models can be computed again without " +
  "the erased data.";

/** `keys`: PEM; `areOwn`: the reader brought them. `typed`: a fingerprint, or a key, that the reader got elsewhere. */
export function Verification({ certificate, keys, areOwn, typed }: { certificate: Uint8Array; keys: string; areOwn: boolean; typed: string }) {
  const [found, setFound] = useState<{ result: Result | null; verdict: Verdict } | null>(null);
  useEffect(() => {
    let isStale = false;
    const isPem = typed.includes("BEGIN PUBLIC KEY");
    const check = async () => {
      try {
        const result = await verifyCertificate(certificate, keysOf(isPem ? typed : keys), subtle);
        return { result, verdict: judge(result, isPem ? "" : typed, isPem || areOwn) };
      } catch (error) {
        return { result: null, verdict: { level: "unknown" as const, sentence: `The public key cannot be used: ${(error as Error).message}.` } };
      }
    };
    void check().then((outcome) => {
      if (!isStale) setFound(outcome);
    });
    return () => {
      isStale = true;
    };
  }, [certificate, keys, areOwn, typed]);
  if (found === null) return null;
  const { result, verdict } = found;
  return (
    <>
      <div className={`verdict ${TONES[verdict.level]}`} role="status" data-level={verdict.level}>
        <strong><Icon of={WORDS[verdict.level][0]} /> {WORDS[verdict.level][1]}</strong>
        <p className="wrap">{verdict.sentence}</p>
        <ul className="checks">
          {result?.checks.map((check) => {
            const [icon, word] = MARKS.get(check.ok) ?? MARKS.get(null)!;
            return (
              <li key={check.name} className={`wrap ${check.ok === true ? "good" : check.ok === false ? "bad" : ""}`}>
                <Icon of={icon} />
                <span><strong>{check.name}</strong><span className="hidden"> {word}</span>: {check.detail}</span>
              </li>
            );
          })}
        </ul>
      </div>
      {result?.statement && verdict.level !== "failed" && (
        <details>
          <summary>What the signed bytes say</summary>
          <Facts of={factsOf(result.statement).map(([name, value]) => [name, <span key={name} className="wrap">{value}</span>])} />
        </details>
      )}
    </>
  );
}
