/** A browser may name a locale that Intl does not know ("en-US@posix"); libraries would throw at their first line. */
function isKnown(locale: string): boolean {
  try {
    new Intl.NumberFormat(locale);
    return true;
  } catch {
    return false;
  }
}

export const LOCALE = isKnown(navigator.language) ? navigator.language : "en";
if (LOCALE !== navigator.language) Object.defineProperty(navigator, "language", { value: LOCALE });
