"""Tavily's search API. https://docs.tavily.com/documentation/api-reference/endpoint/search"""

from __future__ import annotations

import msgspec

from treadle.backends.search_wire import Service, bare_domain, country_of, narrowed
from treadle.ports import SearchQuery, SearchResult

URL = "https://api.tavily.com"
_MOST = 20
_LONGEST = 400
_HINTS = {
    432: "has no searches left in its plan (432).",
    433: "is at the spending limit of its account (433).",
}

# It wants countries by their English names, and refuses names it does not know; others are not sent.
_COUNTRIES = dict(
    pair.split("=")
    for pair in (
        "AR=argentina,AT=austria,AU=australia,BD=bangladesh,BE=belgium,BG=bulgaria,BR=brazil,CA=canada,CH=switzerland,"
        "CL=chile,CN=china,CO=colombia,CR=costa rica,CY=cyprus,CZ=czech republic,DE=germany,DK=denmark,DZ=algeria,"
        "EC=ecuador,EE=estonia,EG=egypt,ES=spain,ET=ethiopia,FI=finland,FR=france,GB=united kingdom,GE=georgia,"
        "GH=ghana,GR=greece,HR=croatia,HU=hungary,ID=indonesia,IE=ireland,IL=israel,IN=india,IQ=iraq,IR=iran,"
        "IS=iceland,IT=italy,JM=jamaica,JO=jordan,JP=japan,KE=kenya,KR=south korea,KW=kuwait,KZ=kazakhstan,"
        "LB=lebanon,LK=sri lanka,LT=lithuania,LU=luxembourg,LV=latvia,MA=morocco,MX=mexico,MY=malaysia,NG=nigeria,"
        "NL=netherlands,NO=norway,NP=nepal,NZ=new zealand,PE=peru,PH=philippines,PK=pakistan,PL=poland,PT=portugal,"
        "PY=paraguay,QA=qatar,RO=romania,RS=serbia,RU=russia,SA=saudi arabia,SE=sweden,SG=singapore,SI=slovenia,"
        "SK=slovakia,TH=thailand,TN=tunisia,TR=turkey,TW=taiwan,UA=ukraine,US=united states,UY=uruguay,"
        "VE=venezuela,VN=vietnam,ZA=south africa"
    ).split(",")
)


class _Asked(msgspec.Struct, omit_defaults=True):
    query: str
    max_results: int
    include_domains: list[str] = []
    exclude_domains: list[str] = []
    country: str = ""


class _Found(msgspec.Struct):
    url: str | None = None
    title: str | None = None
    content: str | None = None


class _Answer(msgspec.Struct):
    results: list[_Found] = []


class TavilySearch:
    """The WebSearch port over Tavily's API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        asked = _Asked(
            query=query.text[:_LONGEST],
            max_results=max(1, min(_MOST, query.limit)),
            include_domains=[bare_domain(domain) for domain in query.allowed],
            exclude_domains=[bare_domain(domain) for domain in query.blocked],
            country=_COUNTRIES.get(country_of(query), ""),
        )
        headers = {"authorization": f"Bearer {self._service.key}"}
        data = await self._service.ask("/search", body=asked, headers=headers, hints=_HINTS)
        answer = self._service.decode(data, _Answer)
        return narrowed(
            [SearchResult(one.url or "", one.title or "", one.content or "") for one in answer.results], query
        )
