import{K as a,N as o,P as t,R as n,S as p,b as e,o as r,s as i,wa as d}from"./chunk-YNGQZHBW.js";t();r();o();n();var l=document.getElementById("app");l&&e(p(d,{}),l);i().then(a);
